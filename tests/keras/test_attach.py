"""`attach` on plain Keras models and keras-hub backbones: found, reached, said, removed, saved as the plain model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from small_models import JIT, X, classifier, compiled, fit, outputs, state

import attentiondrop as ad
import attentiondrop.keras as ak

HARD = ad.HardMasking(p=0.5, k=3)
SMALL = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8}
TOKENS = np.ones((2, 6), "int32")
PADDING = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], "int32")
IMAGES = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")


@pytest.mark.parametrize("jit", [True] if keras.backend.backend() == "jax" else sorted({False, JIT}))
def test_a_later_fit_picks_an_attachment_up_and_drops_it(jit: bool) -> None:
    model = compiled(classifier(), jit_compile=jit)
    fit(model)
    before = outputs(model)
    attachment = ak.attach(model, HARD)
    assert np.array_equal(outputs(model), before)
    generators = [site.generator for site in attachment.sites]
    starts = [state(generator) for generator in generators]
    assert starts[0] != starts[1]
    fit(model)
    assert [state(g)[1] - s[1] for g, s in zip(generators, starts, strict=True)] == [2, 2]
    attachment.remove()
    attachment.remove()
    ends = [state(generator) for generator in generators]
    fit(model)
    assert [state(generator) for generator in generators] == ends
    assert type(model.get_layer("first")) is keras.layers.MultiHeadAttention
    assert np.array_equal(outputs(model, training=True), outputs(model))


def test_what_is_saved_is_the_plain_model(tmp_path: Path) -> None:
    model = compiled(classifier())
    variables = len(model.variables)
    with ak.attach(model, HARD) as attachment:
        fit(model)
        model.save(tmp_path / "it.keras")
        model.save_weights(tmp_path / "it.weights.h5")
        clone, trained = keras.models.clone_model(model), outputs(model)
        assert len(model.weights) == len(clone.weights) and len(attachment.sites) == 2
    loaded, other = keras.models.load_model(tmp_path / "it.keras"), classifier()
    other.load_weights(tmp_path / "it.weights.h5")
    for copy in (loaded, other, clone):
        assert type(copy.get_layer("first")) is keras.layers.MultiHeadAttention
    assert np.array_equal(outputs(loaded), trained) and np.array_equal(outputs(other), trained)
    assert len(model.variables) == variables


def test_a_subclass_is_saved_under_the_name_it_is_registered_by() -> None:
    @keras.saving.register_keras_serializable(package="mine", name="Other")
    class Own(keras.layers.MultiHeadAttention):
        pass

    layer = Own(2, 6)
    layer(X, X)
    plain = keras.saving.serialize_keras_object(layer)
    with ak.attach(layer, HARD):
        attached = keras.saving.serialize_keras_object(layer)
        assert attached["registered_name"] == plain["registered_name"] == "mine>Other"
        assert type(keras.saving.deserialize_keras_object(attached)) is Own
    assert type(layer) is Own


def test_patterns_reports_updates() -> None:
    model = classifier()
    attachment = ak.attach(model, {"first": HARD, "*": "blur(sigma_max=0.5)+consistency(weight=0.2)"})
    assert str(attachment).splitlines() == [
        "AttentionDrop on Functional: 2 attention sites",
        "  first   MultiHeadAttention  hard(p=0.5,k=3)",
        "  second  MultiHeadAttention  blur(sigma_max=0.5)+consistency(weight=0.2)",
    ]
    assert attachment.consistency == ad.Consistency(weight=0.2)
    attachment.set_rates({"hard.p": 0.1, "sigma_max": 0.2})
    assert [str(s.spec) for s in attachment.sites] == [
        "hard(p=0.1,k=3)",
        "blur(sigma_max=0.2)+consistency(weight=0.2)",
    ]
    with pytest.raises(ad.ArgumentError, match=r"rates: expected names among p, hard.p, .*, received 'q'"):
        attachment.set_rates({"q": 0.1})
    with pytest.raises(ad.ArgumentError, match=r"p: expected a number in \[0, 1\], received 2"):
        attachment.set_rates({"p": 2})
    attachment.update("drophead(p=0.5)")
    assert {str(site.spec) for site in attachment.sites} == {"drophead(p=0.5)"}
    with pytest.raises(ad.AttachError, match="received none for second"):
        attachment.update({"first": HARD})
    attachment.remove()
    assert [site.name for site in ak.attach(model, {"second": HARD}).sites] == ["second"]


def test_what_cannot_be_reached_is_said() -> None:
    class Own(keras.layers.MultiHeadAttention):
        def _compute_attention(self, *args: Any, **kwargs: Any) -> Any:
            return super()._compute_attention(*args, **kwargs)

    class Silent(keras.layers.MultiHeadAttention):
        def call(self, query: Any, value: Any, key: Any = None) -> Any:
            return query

    x = keras.Input((8, 12))
    h = keras.layers.MultiHeadAttention(2, 6, name="plain")(x, x)
    h = keras.layers.Attention(name="dot")([Own(2, 6, name="own")(h, h), Silent(2, 6, name="silent")(h, h)])
    model = keras.Model(x, h)
    with pytest.warns(ad.AttentionDropWarning, match=r"3 attention modules of Functional could not be reached"):
        attachment = ak.attach(model, HARD)
    assert {entry.name: entry.reason for entry in attachment.unreached} == {
        "dot": "it computes its attention in its own code",
        "own": "it overrides _compute_attention",
        "silent": "its call does not use _compute_attention",
    }
    assert "not reached: 3" in str(attachment)
    assert not ak.attach(model, {"plain": HARD}).unreached  # what nobody asked for is not missed
    assert not ak.attach(model, {"dot": None, "own": None, "silent": None, "*": HARD}).unreached
    for bad, message in [
        (keras.Sequential([keras.layers.Dense(3)]), "nothing in it is MultiHeadAttention .*; the model is not built"),
        (keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)]), "nothing in it is MultiHeadAttention"),
        (keras.Model(x, keras.layers.Attention()([x, x])), "seen, but out of reach:\n  attention.* Attention"),
    ]:
        with pytest.raises(ad.AttachError, match=message):
            ak.attach(bad, HARD)
    with pytest.raises(ad.AttachError, match="pattern 'third' matches no attention site; there is first, second"):
        ak.attach(classifier(), {"third": HARD})
    with pytest.raises(ad.ArgumentError, match=r"model: expected a keras.Model or a keras.Layer, received 'list'"):
        ak.attach([], HARD)


def test_our_own_layers_get_their_spec_back() -> None:
    model = classifier(ak.MultiHeadAttention, attention_drop="noise(sigma=0.1)")
    attachment = ak.attach(model, {"first": HARD})
    assert model.get_layer("first").attention_drop == HARD
    attachment.remove()
    assert str(model.get_layer("first").attention_drop) == "noise(sigma=0.1)"
    bare = ak.MultiHeadAttention(2, 6)
    bare(X, X)
    with ak.attach(bare, HARD):
        assert bare.attention_drop == HARD
    assert bare.attention_drop is None


def test_our_own_layers_are_saved_with_their_own_spec(tmp_path: Path) -> None:
    """Nobody could remove an attached spec from a file again."""
    model = classifier(ak.MultiHeadAttention, attention_drop="noise(sigma=0.1)")
    bare = ak.MultiHeadAttention(2, 6)
    bare(X, X)
    ak.attach(model, HARD), ak.attach(bare, HARD)
    model.save(tmp_path / "model.keras")
    for copy in (keras.models.clone_model(model), keras.models.load_model(tmp_path / "model.keras")):
        assert [str(copy.get_layer(name).attention_drop) for name in ("first", "second")] == ["noise(sigma=0.1)"] * 2
    assert ak.MultiHeadAttention.from_config(bare.get_config()).attention_drop is None
    ak.set_rates(model, {"p": 0.2})
    assert model.get_layer("first").attention_drop.p == 0.2
    assert model.get_layer("first").get_config()["attention_drop"] == ad.GaussianNoise(0.1).to_dict()


def test_attachments_on_the_same_layers_do_not_undo_each_other() -> None:
    model = classifier()
    below = ak.attach(model, HARD)
    above = ak.attach(model, {"first": "noise(sigma=1.0)"})
    assert [site.name for site in below.sites] == ["second"]
    below.set_rates({"p": 0.2})
    assert str(above.sites[0].spec) == "noise(sigma=1.0)"
    above.remove()
    assert [(site.name, site.spec.p) for site in below.sites] == [("first", 0.5), ("second", 0.2)]
    assert not np.array_equal(outputs(model, training=True), outputs(model))
    above = ak.attach(model, {"second": "noise(sigma=1.0)"})
    above.update("noise(sigma=2.0)")
    below.remove()
    assert [str(site.spec) for site in above.sites] == ["noise(sigma=2.0)"]
    assert type(model.get_layer("first")) is keras.layers.MultiHeadAttention
    above.remove()
    assert type(model.get_layer("second")) is keras.layers.MultiHeadAttention
    assert np.array_equal(outputs(model, training=True), outputs(model))


def test_our_own_layers_go_on_where_they_were() -> None:
    """An attachment changes neither the rates that were set before it nor the sequence of draws."""
    model = classifier(ak.MultiHeadAttention, attention_drop="noise(sigma=0.1)", seed=3)
    ak.set_rates(model, {"sigma": 0.3})
    outputs(model, training=True)
    generator = model.get_layer("first")._attentiondrop_site.generator
    with ak.attach(model, HARD):
        outputs(model, training=True)
    assert str(model.get_layer("first").attention_drop) == "noise(sigma=0.3)"
    assert model.get_layer("first")._attentiondrop_site.generator is generator and state(generator)[1] == 1


def test_layers_of_one_name_are_told_apart() -> None:
    class Twins(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(name="twins")
            self.one, self.two = (keras.layers.MultiHeadAttention(2, 6, name="attention") for _ in range(2))

        def call(self, x: Any) -> Any:
            return self.two(self.one(x, x), x)

    x = keras.Input((8, 12))
    attachment = ak.attach(keras.Model(x, Twins()(x)), HARD)
    assert [site.name for site in attachment.sites] == ["twins/attention", "twins/attention_2"]


def clip(hub: Any) -> Any:
    options = {"hidden_dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 8}
    vision = hub.CLIPVisionEncoder(patch_size=8, image_shape=(16, 16, 3), **options)
    text = hub.CLIPTextEncoder(vocabulary_size=9, embedding_dim=8, max_sequence_length=6, **options)
    return hub.CLIPBackbone(vision, text, projection_dim=4), {"images": IMAGES, "token_ids": TOKENS}


def text(cls: str, **more: Any) -> Any:
    def make(hub: Any) -> Any:
        model = getattr(hub, cls)(vocabulary_size=9, max_sequence_length=6, intermediate_dim=8, **SMALL)
        return model, {"token_ids": TOKENS, "padding_mask": PADDING, **more}

    return make


def image(cls: str, size: str) -> Any:
    def make(hub: Any) -> Any:
        return getattr(hub, cls)(image_shape=(16, 16, 3), patch_size=8, **{size: 8}, **SMALL), IMAGES

    return make


def whisper(hub: Any) -> Any:
    model = hub.WhisperBackbone(
        vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8, num_mels=4,
        max_encoder_sequence_length=12, max_decoder_sequence_length=6,
    )  # fmt: skip
    features = np.random.default_rng(0).normal(size=(2, 12, 4)).astype("float32")
    return model, {"encoder_features": features, "decoder_token_ids": TOKENS, "decoder_padding_mask": PADDING}


BACKBONES = {
    "Bert": (text("BertBackbone", segment_ids=0 * TOKENS), 2),
    "GPT2": (text("GPT2Backbone"), 2),
    "ViT": (image("ViTBackbone", "mlp_dim"), 2),
    "DeiT": (image("DeiTBackbone", "intermediate_dim"), 2),
    "CLIP": (clip, 2),
    "Whisper": (whisper, 3),
}


@pytest.mark.parametrize("name", BACKBONES)
def test_keras_hub_backbones(name: str, tmp_path: Path) -> None:
    if keras.backend.backend() == "jax" and name not in ("Bert", "GPT2"):
        pytest.skip("minutes of compilation for nothing that the other backends do not show")
    hub = pytest.importorskip("keras_hub").models
    make, sites = BACKBONES[name]
    model, inputs = make(hub)

    def run(training: bool) -> list[np.ndarray]:
        tensors = keras.tree.flatten(model(inputs, training=training))
        return [np.asarray(keras.ops.convert_to_numpy(keras.ops.stop_gradient(x))) for x in tensors]

    def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
        return all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))

    plain = run(False)
    attachment = ak.attach(model, HARD)
    assert len(attachment.sites) == sites and not attachment.unreached
    assert same(run(False), plain)
    trained = run(True)
    assert not same(trained, plain) and not same(trained, run(True)) and all(np.isfinite(x).all() for x in trained)
    model.save_weights(tmp_path / "it.weights.h5")
    attachment.remove()
    model.load_weights(tmp_path / "it.weights.h5")
    assert same(run(False), plain)


def test_keras_hub_attention_of_its_own_is_said() -> None:
    hub = pytest.importorskip("keras_hub").models
    model = hub.LlamaBackbone(9, 1, 2, 8, 8, 2)
    with pytest.raises(ad.AttachError, match=r"seen, but out of reach:\n  .*LlamaAttention"):
        ak.attach(model, HARD)
