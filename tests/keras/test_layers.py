"""The layers: eval is the stock layer, files exchange with it, configurations and dtypes go round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras_parity import BACKEND, relative_error, to_numpy
from small_models import JIT, X, classifier, compiled, fit, outputs

import attentiondrop as ad
import attentiondrop.keras as ak
from attentiondrop import reference
from attentiondrop.specs import Spec

HARD = ad.HardMasking(p=0.3, k=3)
LAYERS = [
    (keras.layers.MultiHeadAttention, ak.MultiHeadAttention, (2, 6)),
    (keras.layers.GroupQueryAttention, ak.GroupedQueryAttention, (6, 4, 2)),
]


@pytest.mark.parametrize("stock, ours, sizes", LAYERS, ids=["multi-head", "grouped"])
def test_eval_is_the_stock_layer_bit_for_bit(stock: Any, ours: Any, sizes: tuple[int, ...]) -> None:
    x, y = X[:2], X[2:4, :5]
    mask = np.random.default_rng(0).random((2, 8, 5)) < 0.7
    calls: list[dict[str, Any]] = [
        {},
        {"use_causal_mask": True},
        {"attention_mask": mask},
        {"attention_mask": mask, "use_causal_mask": True, "return_attention_scores": True},
        {"return_attention_scores": True},
    ]
    for dropout in (0.0, 0.2):
        plain, layer = stock(*sizes, dropout=dropout), ours(*sizes, dropout=dropout, attention_drop=HARD)
        plain(x, y), layer(x, y)
        layer.set_weights(plain.get_weights())
        for options in calls if dropout == 0 else calls[-2:]:
            want, have = plain(x, y, training=False, **options), layer(x, y, training=False, **options)
            for one, other in zip(keras.tree.flatten(want), keras.tree.flatten(have), strict=True):
                assert np.array_equal(to_numpy(one), to_numpy(other)), options


def test_causality_reaches_the_backend_as_in_the_stock_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stock layer looks at the class before it asks the backend's own causal attention."""
    seen: list[Any] = []
    whole = keras.ops.dot_product_attention

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append((kwargs.get("is_causal"), kwargs.get("mask")))
        return whole(*args, **kwargs)

    monkeypatch.setattr(keras.src.ops, "dot_product_attention", spy)
    layer = ak.MultiHeadAttention(2, 6, attention_drop=HARD)
    layer(X, X, use_causal_mask=True, training=False)
    assert seen == [(True, None)]


def weights_by_hand(layer: Any, x: np.ndarray, spec: Spec, draws: Any, **options: Any) -> np.ndarray:
    q, k, v = (
        np.einsum("btd,dhe->bhte", x, to_numpy(dense.kernel)) + to_numpy(dense.bias)[:, None]
        for dense in (layer.query_dense, layer.key_dense, layer.value_dense)
    )
    return reference.attention(q, k, v, spec, draws, **options).weights


@pytest.mark.parametrize("spec", [HARD, ad.BlurSmoothing(1.0, sampling="head"), ad.GaussianNoise(0.5)], ids=str)
def test_training_is_the_oracle_with_the_draws_of_the_layer(spec: Spec) -> None:
    from attentiondrop.keras.call.leaves import LogitShape, leaves_of

    layer = ak.MultiHeadAttention(2, 6, attention_drop=spec)
    layer(X, X)
    mask = np.arange(8) < 6
    before = keras.random.SeedGenerator(0)
    before.state.assign(layer._attentiondrop_site.generator.state)
    for _ in range(2):
        (leaf,) = leaves_of(spec, LogitShape(4, 2, 8, 8), before)
        _, have = layer(X[:4], X[:4], attention_mask=mask[None, None], use_causal_mask=True, training=True,
                        return_attention_scores=True)  # fmt: skip
        want = weights_by_hand(
            layer, X[:4].astype("float64"), spec, to_numpy(leaf.draw), attn_mask=mask[None, None, None], is_causal=True
        )
        assert relative_error(to_numpy(have), want) < 1e-5


def test_blur_alone_asks_the_backend_for_plain_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    whole = keras.ops.dot_product_attention
    monkeypatch.setattr(keras.ops, "dot_product_attention", lambda *a, **k: calls.append(k) or whole(*a, **k))
    layer = ak.MultiHeadAttention(2, 6, attention_drop="blur(sigma_max=1.0)+drophead(p=0.3)")
    keys = np.arange(8)[None, None] < 6
    layer(X, X, training=True), layer(X, X, attention_mask=keys, training=True)
    assert len(calls) == 2
    layer(X, X, training=True, use_causal_mask=True)  # each row has a kernel of its own there
    layer(X, X, training=True, return_attention_scores=True)
    assert len(calls) == 2


def test_the_layers_own_dropout_acts_after_the_perturbation() -> None:
    with pytest.warns(ad.AttentionDropWarning):
        layer = ak.MultiHeadAttention(2, 6, dropout=0.9, use_bias=False, attention_drop=ad.HardMasking(p=1.0, k=8))
    output, scores = layer(X, X, training=True, return_attention_scores=True)
    # Everything is masked to 0, so the weights are equal; the dropout is not in them, but in the output.
    assert np.allclose(to_numpy(scores), 1 / 8) and np.ptp(to_numpy(output), axis=1).max() > 1e-3


def test_attention_over_several_axes() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5, 6)).astype("float32")
    mask = np.random.default_rng(1).random((2, 3, 4, 5, 4, 5)) < 0.8
    cases = [((2, 3), mask[:, :, None]), ((1, 2), None), ((2,), None)]
    compared = 0
    for axes, given in cases[:1] if BACKEND == "jax" else cases:
        options = {"attention_mask": given, "return_attention_scores": True}
        plain = keras.layers.MultiHeadAttention(2, 3, attention_axes=axes)
        try:
            plain(x, x)
        except Exception as error:  # of TensorFlow, whose softmax on an x86 CPU has at most five dimensions
            if "Input dims must be <= 5" not in str(error):
                raise
            continue
        compared += 1
        with_zero = ak.MultiHeadAttention(2, 3, attention_axes=axes, attention_drop=ad.HardMasking(p=0.0, k=2))
        plain(x, x), with_zero(x, x)
        with_zero.set_weights(plain.get_weights())
        for want, have in zip(plain(x, x, **options), with_zero(x, x, training=True, **options), strict=True):
            assert relative_error(to_numpy(have), to_numpy(want)) < 1e-6
        dropping = ak.MultiHeadAttention(2, 3, attention_axes=axes, attention_drop="dropkey(p=0.5)")
        _, scores = dropping(x, x, training=True, **options)
        assert 0.3 < (to_numpy(scores) == 0).mean() < 0.8
    assert compared


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_logits_over_several_axes_are_float32(policy: str) -> None:
    layer = ak.MultiHeadAttention(2, 16, attention_axes=(1, 2), attention_drop="dropkey(p=0.0)", dtype=policy)
    layer(np.ones((2, 3, 4, 8)), np.ones((2, 3, 4, 8)))
    arrays = np.random.default_rng(0).normal(size=(3, 2, 3, 4, 2, 16)) * 3
    query, key, value = (keras.ops.convert_to_tensor(x, dtype=layer.compute_dtype) for x in arrays)
    output, weights = layer._compute_attention(query, key, value, training=True)
    flat = [to_numpy(x).reshape(2, 12, 2, 16).swapaxes(1, 2) for x in (query, key, value)]
    expected = reference.attention(*flat).output.swapaxes(1, 2).reshape(2, 3, 4, 2, 16)
    # The half of the last bit of bfloat16 is 2^-9, of float16 2^-12: only the result is rounded.
    bit = 2.0**-9 if "bfloat16" in policy else 2.0**-12
    assert relative_error(to_numpy(output), expected) < bit
    assert output.dtype == weights.dtype == query.dtype


def test_weight_files_exchange_both_ways(tmp_path: Path) -> None:
    plain, ours = classifier(), classifier(ak.MultiHeadAttention, attention_drop=HARD)
    for source, target in ((plain, ours), (ours, plain)):
        keras.utils.set_random_seed(1)
        fit(compiled(source))
        source.save_weights(tmp_path / "it.weights.h5")
        target.load_weights(tmp_path / "it.weights.h5")
        assert np.array_equal(outputs(source), outputs(target))
    assert [w.path for w in plain.weights] == [w.path for w in ours.weights]


def test_keras_files_configurations_and_clones_go_round(tmp_path: Path) -> None:
    spec = ad.parse("oneof(hard(p=0.2,k=3),blur(sigma_max=0.7))+drophead(p=0.2)")
    model = classifier(ak.MultiHeadAttention, attention_drop=spec)
    model.save(tmp_path / "it.keras")
    loaded = keras.models.load_model(tmp_path / "it.keras")
    clone = keras.models.clone_model(model)
    assert np.array_equal(outputs(model), outputs(loaded))
    for copy in (loaded, clone):
        assert copy.get_layer("second").attention_drop == spec
        assert not np.array_equal(outputs(copy, training=True), outputs(copy, training=True))
    grouped = ak.GroupedQueryAttention(6, 4, 2, attention_drop=spec, seed=3)
    drop = ak.AttentionDrop(spec, seed=4)
    for layer in (grouped, drop):
        again = type(layer).from_config(layer.get_config())
        assert again.get_config() == layer.get_config() and again.seed == layer.seed


@pytest.mark.parametrize("name", ["MultiHeadAttention", "GroupedQueryAttention", "AttentionDrop", "ConsistencyModel"])
def test_saved_files_contain_the_name_of_the_package(name: str) -> None:
    """Under another name, files that users saved before could not be loaded."""
    assert keras.saving.get_registered_name(getattr(ak, name)) == f"attentiondrop>{name}"


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16", "float64"])
def test_dtype_policies(policy: str) -> None:
    if BACKEND == "jax" and policy == "float64":
        pytest.skip("JAX is float32 unless the whole process says otherwise")
    for spec in (HARD, ad.BlurSmoothing(1.0)):
        layer = ak.MultiHeadAttention(2, 6, attention_drop=spec, dtype=policy)
        output, scores = layer(X, X, training=True, return_attention_scores=True)
        assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
        assert keras.backend.standardize_dtype(scores.dtype) == layer.compute_dtype
        assert keras.backend.standardize_dtype(layer(X, X, training=True).dtype) == layer.compute_dtype
        rates = layer._attentiondrop_site.rates.state
        assert rates.dtype == ("float64" if policy == "float64" else "float32")


def test_mixed_bfloat16_trains() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        history = fit(compiled(classifier(ak.MultiHeadAttention, attention_drop=HARD), jit_compile=JIT), epochs=2)
    finally:
        keras.config.set_dtype_policy("float32")
    assert np.isfinite(history.history["loss"]).all()


def test_logits_that_are_masked_already_stay_masked() -> None:
    """Hand-written layers fill the logits before the softmax. A dropped logit must not show a hidden key."""
    future = np.triu(np.ones((6, 6), bool), 1)
    filled = np.where(future, -np.inf, np.random.default_rng(0).normal(size=(2, 4, 6, 6))).astype("float32")
    for spec in (ad.HardMasking(p=0.5, k=5), ad.BlurSmoothing(1.0)):
        weights = keras.ops.convert_to_numpy(ak.AttentionDrop(spec, seed=4)(filled))
        assert not weights[..., future].any()
        np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)
    spoilt = np.full((1, 1, 2, 2), np.nan, "float32")
    assert np.isnan(keras.ops.convert_to_numpy(ak.AttentionDrop(ad.DropKey(p=0.5))(spoilt))).any()


def test_logits_to_weights() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 3, 5, 5)).astype("float32")
    mask = np.tri(5, dtype=bool)
    drop = ak.AttentionDrop(ad.DropKey(p=0.5))
    trained, again = to_numpy(drop(logits, mask)), to_numpy(drop(logits, mask))
    assert (trained != again).any() and np.allclose(trained.sum(-1), 1, atol=1e-6) and not trained[..., ~mask].any()
    plain = reference.masked_softmax(logits.astype("float64"), np.broadcast_to(mask, logits.shape)).weights
    assert relative_error(to_numpy(drop(logits, mask, training=False)), plain) < 1e-6
    additive = np.where(mask, 0.0, -np.inf).astype("float32")
    assert np.array_equal(
        to_numpy(drop(logits, additive, training=False)), to_numpy(drop(logits, mask, training=False))
    )
    assert not to_numpy(drop(logits, np.zeros((1, 1, 1, 5), bool))).any()
    assert to_numpy(drop(logits, training=False)).all()  # without a mask, no key is hidden
    # Inside a model it follows the model.
    inputs = keras.Input((3, 5, 5))
    model = keras.Model(inputs, drop(inputs, is_causal=True))
    assert relative_error(outputs(model, x=logits).astype("float64"), plain) < 1e-6
    assert (outputs(model, training=True, x=logits) != outputs(model, x=logits)).any()


class CallsWithoutTraining(keras.Model):
    """Its `call` does not pass `training` on, and a dropout follows the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.dropout = ak.AttentionDrop("dropkey(p=0.5)"), keras.layers.Dropout(0.5)

    def call(self, logits: Any, training: bool | None = None) -> Any:
        return self.dropout(self.drop(logits))


def test_a_model_called_without_training_is_in_evaluation() -> None:
    """The weights must be plain, and the layers after them must not go into training mode."""
    logits = np.random.default_rng(0).normal(size=(2, 3, 5, 5)).astype("float32")
    plain = reference.masked_softmax(logits.astype("float64"), np.ones(logits.shape, bool)).weights
    model = CallsWithoutTraining()
    for result in (model(logits), model.predict(logits, verbose=0), model(logits, training=False)):
        assert relative_error(np.asarray(to_numpy(keras.ops.convert_to_tensor(result))), plain) < 1e-6
    assert (outputs(model, training=True, x=logits) == 0).any()
    assert (to_numpy(model.drop(logits)) == 0).any()  # on its own it is in training


def test_keras_masks_are_honoured() -> None:
    tokens = np.array([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0]])
    inputs = keras.Input((5,))
    h = keras.layers.Embedding(6, 12, mask_zero=True)(inputs)
    attention = ak.MultiHeadAttention(2, 6, attention_drop=HARD)
    model = keras.Model(inputs, attention(h, h, return_attention_scores=True)[1])
    scores = outputs(model, training=True, x=tokens)
    assert not scores[0, :, :, 3:].any() and np.allclose(scores[1, :, 0], [1, 0, 0, 0, 0])


def test_bad_specs_are_named() -> None:
    with pytest.raises(ad.ArgumentError, match="attention_drop: expected a spec such as"):
        ak.MultiHeadAttention(2, 6, attention_drop=0.1)
    with pytest.raises(ad.ArgumentError, match="attention_drop: expected a perturbation to go with consistency"):
        ak.GroupedQueryAttention(6, 4, 2, attention_drop="consistency")
    with pytest.raises(ad.ArgumentError, match="spec: expected a perturbation to go with consistency"):
        ak.AttentionDrop(ad.Consistency())
    with pytest.raises(ad.ParseError, match="unknown spec"):
        ak.AttentionDrop("harder(p=0.1)")
    with pytest.raises(ValueError, match="num_heads"):
        ak.MultiHeadAttention(0, 6, attention_drop=HARD)
    if BACKEND != "tensorflow":
        layer = ak.MultiHeadAttention(2, 6, flash_attention=True, attention_drop=HARD)
        with pytest.raises(ValueError, match="Returning attention scores is not supported"):
            layer(X, X, training=True, return_attention_scores=True)
