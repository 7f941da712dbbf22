"""Draws: those of `attentiondrop.torch` for the same seed, the same compiled or not, never the same by accident."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras_parity import BACKEND, numpy_draws, relative_error, to_numpy

import attentiondrop as ad
import attentiondrop.keras as ak
from attentiondrop import reference
from attentiondrop.keras.call.draws import Stream, seed_words
from attentiondrop.keras.call.leaves import LogitShape, leaves_of

LOGITS = np.random.default_rng(0).normal(size=(2, 3, 7, 9)).astype("float32")


@pytest.mark.parametrize("seed", [0, 3, 0x7EDCBA9876543210])
def test_the_hash_is_that_of_the_torch_package(seed: int) -> None:
    import torch

    from attentiondrop.torch.draws import Stream as TorchStream

    theirs, ours = TorchStream(torch.tensor(seed), 2), Stream(seed_words(seed), 2)
    shape = (2, 3, 5, 7)
    assert np.array_equal(to_numpy(ours.uniforms(*shape)), theirs.uniforms(*shape).double().numpy())
    assert np.array_equal(to_numpy(ours.uniform_vector(11)), theirs.uniform_vector(11).double().numpy())
    assert np.allclose(to_numpy(ours.normals(*shape)), theirs.normals(*shape).double().numpy(), atol=2e-6)


@pytest.mark.parametrize(
    "text", ["dropattention(p=0.4,span=2)", "dropattention(p=0.4,by=column)", "headmask(count=2)", "temperature"]
)
def test_a_seed_gives_what_torch_draws(text: str) -> None:
    """One seed gives one result in all frameworks: Keras computes what the oracle makes of torch's draws."""
    import torch

    from attentiondrop.torch.call import leaves
    from attentiondrop.torch.draws import Stream as TorchStream

    spec, number, shape = ad.parse(text), 5 + (1 << 32), LOGITS.shape
    drawn = leaves.draw_for(spec, TorchStream(torch.tensor(number), 0), leaves.LogitShape(*shape)).double().numpy()
    eye = np.broadcast_to(np.eye(shape[-1]), (*shape[:2], shape[-1], shape[-1]))
    want = reference.attention(np.asarray(LOGITS, "float64"), eye, eye, spec, drawn, scale=1.0).weights
    assert relative_error(to_numpy(ak.attention_weights(LOGITS, spec, seed=number)), want) < 1e-5


def compilers() -> list[Callable[..., Any]]:
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return [tf.function, tf.function(jit_compile=True)]
    if BACKEND == "jax":
        import jax

        return [jax.jit]
    return []


@pytest.mark.parametrize(
    "text",
    [
        "hard(p=0.4,k=3)",
        "blur(sigma_max=1.0)",
        "noise",
        "dropkey(p=0.4)+attndropout(p=0.3)",
        "dropattention(p=0.4,span=2)+headmask(count=2)",
    ],
)
def test_compiled_functions_draw_what_eager_ones_draw(text: str) -> None:
    """Pure TensorFlow and JAX: no layer, seeds as the stateless functions of those libraries take them."""
    spec = ad.parse(text)
    expected = to_numpy(ak.attention_weights(LOGITS, spec, seed=np.array([5, 1], "int32")))
    for compile_it in compilers():

        @compile_it
        def weights(logits: Any, seed: Any) -> Any:
            return ak.attention_weights(logits, spec, seed=seed)

        for seed, want in (([5, 1], True), ([5, 2], False)):
            have = to_numpy(weights(LOGITS, np.array(seed, "int32")))
            assert (relative_error(have, expected) < 1e-5) == want


def test_an_int_repeats_and_a_generator_moves_on() -> None:
    spec = ad.DropKey(p=0.5)
    one, two = (to_numpy(ak.attention_weights(LOGITS, spec, seed=seed)) for seed in (3, np.int64(3)))
    generator = keras.random.SeedGenerator(3)
    first, second = (to_numpy(ak.attention_weights(LOGITS, spec, seed=generator)) for _ in range(2))
    third, fourth = (to_numpy(ak.attention_weights(LOGITS, spec)) for _ in range(2))
    assert np.array_equal(one, two) and np.array_equal(one, first)
    assert (first != second).any() and (third != fourth).any()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="graphs that do not know their shapes are TensorFlow's")
def test_graphs_of_unknown_shape() -> None:
    import tensorflow as tf

    unknown = tf.TensorSpec([None, None, None, None], tf.float32)
    for text in ("hard(p=0.4,k=5)", "blur(sigma_max=1.0,sampling=head)", "drophead(p=0.3)+dropkey(p=0.3)"):
        spec = ad.parse(text)
        traced = tf.function(lambda x, spec=spec: ak.attention_weights(x, spec, seed=1), input_signature=[unknown])
        for logits in (LOGITS, LOGITS[:, :, :, :3]):
            assert relative_error(to_numpy(traced(logits)), to_numpy(ak.attention_weights(logits, spec, seed=1))) < 1e-6
    generator = keras.random.SeedGenerator(1)

    @tf.function(jit_compile=True)
    def step(logits: Any) -> Any:
        return ak.attention_weights(logits, ad.HardMasking(p=0.5, k=3), seed=generator)

    assert (to_numpy(step(LOGITS)) != to_numpy(step(LOGITS))).any()


def test_rates_may_be_a_tensor() -> None:
    spec = ad.parse("hard(p=0.1,k=3)+blur(sigma_max=0.5)")
    other = ad.parse("hard(p=0.4,k=3)+blur(sigma_max=0.9,sigma_min=0.3)")
    draws = numpy_draws(spec, LOGITS.shape, np.random.default_rng(0))
    have = ak.attention_weights(LOGITS, spec, draws=draws, rates=np.array([0.4, 0.9, 0.3], "float32"))
    assert relative_error(to_numpy(have), to_numpy(ak.attention_weights(LOGITS, other, draws=draws))) < 1e-6


def test_regularisers_and_layers_share_no_draws() -> None:
    spec = ad.parse("dropkey(p=0.5)+dropkey(p=0.5)+attndropout(p=0.5)")
    draws = [to_numpy(leaf.draw).ravel() for leaf in leaves_of(spec, LogitShape(4, 4, 16, 16), 0)]
    layers = [ak.AttentionDrop(ad.DropKey(p=0.5)) for _ in range(2)]
    draws += [
        to_numpy(leaves_of(spec, LogitShape(4, 4, 16, 16), layer._site.generator)[0].draw).ravel() for layer in layers
    ]
    correlations = np.corrcoef(draws) - np.eye(len(draws))
    # 4096 uniforms each: a correlation has a standard deviation of 1/64, and ten pairs reach 5 of them once in 10^5.
    assert np.abs(correlations).max() < 5 / 64
    # The layer's own dropout must not follow the same numbers when both have the layer's seed.
    seeded = ak.MultiHeadAttention(2, 6, dropout=0.5, seed=7, attention_drop="dropkey(p=0.5)")
    seeded.build((2, 8, 12), (2, 8, 12))
    mine, its = (
        keras.ops.convert_to_numpy(g.state)[0]
        for g in (seeded._attentiondrop_site.generator, seeded._dropout_layer.seed_generator)
    )
    assert mine != its


@pytest.mark.skipif(BACKEND == "jax", reason="on JAX, Keras has one copy of the model")
def test_replicas_share_no_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every copy of a model in data-parallel training has the same seeds."""

    def draws(replica: int) -> np.ndarray:
        if BACKEND == "tensorflow":
            import tensorflow as tf

            context = types.SimpleNamespace(num_replicas_in_sync=2, replica_id_in_sync_group=tf.constant(replica))
            monkeypatch.setattr(tf.distribute, "get_replica_context", lambda: context)
        else:
            import torch

            monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
            monkeypatch.setattr(torch.distributed, "get_rank", lambda: replica)
        generator = keras.random.SeedGenerator(3)
        return np.concatenate([to_numpy(Stream(seed_words(generator), 0).uniform_vector(512)) for _ in range(2)])

    alone = np.concatenate(
        [to_numpy(Stream(seed_words(keras.ops.array([3, n])), 0).uniform_vector(512)) for n in (0, 1)]
    )
    assert np.array_equal(draws(0), alone)
    drawn = [draws(replica).reshape(2, -1) for replica in range(3)]
    assert len(np.unique(np.concatenate(drawn)[:, 0])) == 6


def test_how_often_keys_are_dropped() -> None:
    uniform = to_numpy(Stream(seed_words(11), 0).uniforms(8, 4, 32, 64))
    for p in (0.1, 0.5):
        # 65536 draws; six standard deviations fail once in 10^9.
        assert abs((uniform < p).mean() - p) < 6 * np.sqrt(p * (1 - p) / uniform.size)
    normal = to_numpy(Stream(seed_words(11), 1).normals(8, 4, 32, 64))
    assert abs(normal.mean()) < 6 / 256 and abs(normal.var() - 1) < 6 * np.sqrt(2) / 256
