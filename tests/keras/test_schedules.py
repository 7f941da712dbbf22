"""Schedules in specs: `ScheduleCallback` and `set_progress` evaluate them, layer by layer, without compiling anew."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest

import attentiondrop as ad
from attentiondrop import schedules as sc
from attentiondrop.keras import ConsistencyModel, MultiHeadAttention, ScheduleCallback, attach, attention, set_rates


def model(layers: int = 2) -> Any:
    x = inputs = keras.Input((6, 8))
    for number in range(layers):
        x = keras.layers.MultiHeadAttention(2, 4, name=f"attention{number}")(x, x)
    outputs = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(x))
    made = keras.Model(inputs, outputs)
    made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def test_fit_follows_the_schedules_of_the_specs() -> None:
    plain = model()
    attachment = attach(plain, ad.HardMasking(p=sc.Depth(sc.Linear(0.0, 0.4), 0.0), k=2))
    seen: list[list[float]] = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append([site.spec.p for site in attachment.sites])

    x, y = np.random.default_rng(0).normal(size=(16, 6, 8)), np.zeros(16, dtype="int32")
    plain.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[ScheduleCallback(), Look()])
    assert seen == [pytest.approx([p, 0.0]) for p in (0.0, 0.1, 0.2, 0.3)]


def test_set_progress_and_update() -> None:
    attachment = attach(
        model(), ad.Compose([ad.DropKey(sc.PerLayer([0.1, sc.Linear(0.0, 0.2)])), ad.Consistency(sc.Linear(0.0, 1.0))])
    )
    attachment.set_progress(0.5)
    assert [site.spec.parts[0].p for site in attachment.sites] == pytest.approx([0.1, 0.1])
    assert attachment.consistency == ad.Consistency(0.5)
    attachment.update(ad.DropKey(sc.Linear(0.0, 0.2)))
    assert [site.spec.p for site in attachment.sites] == pytest.approx([0.1, 0.1])


def test_a_layer_is_saved_with_its_schedule() -> None:
    layer = MultiHeadAttention(2, 4, attention_drop=ad.DropKey(sc.Linear(0.1, 0.2)))
    again = MultiHeadAttention.from_config(layer.get_config())
    assert again.attention_drop == ad.DropKey(0.1)
    assert again.get_config()["attention_drop"] == ad.DropKey(sc.Linear(0.1, 0.2)).to_dict()


def test_a_number_that_was_set_stays_next_to_a_schedule() -> None:
    plain = model()
    spec = ad.Compose([ad.HardMasking(p=sc.Linear(0.0, 0.4), k=2), ad.GaussianNoise(0.1)])
    attachment = attach(plain, spec)
    attachment.set_rates({"p": 0.3, "sigma": 0.3})
    assert str(attachment.sites[0].spec) == "hard(p=0.3,k=2)+noise(sigma=0.3)"
    attachment.set_progress(0.5)
    assert str(attachment.sites[0].spec) == "hard(p=0.2,k=2)+noise(sigma=0.3)"
    layer = MultiHeadAttention(2, 4, attention_drop=spec)
    set_rates(layer, {"sigma": 0.3})
    saved = ad.Compose([ad.HardMasking(p=sc.Linear(0.0, 0.4), k=2), ad.GaussianNoise(0.3)])
    assert layer.get_config()["attention_drop"] == saved.to_dict()


def test_rates_that_do_not_fit_change_nothing() -> None:
    plain = model()
    attachment = attach(plain, {"attention0": "blur(sigma_max=0.5)", "*": "blur(sigma_max=0.9,sigma_min=0.6)"})
    before = [site.spec for site in attachment.sites]
    cases: list[tuple[Any, str]] = [
        ({"sigma_max": 0.55}, "sigma_min: expected at most sigma_max=0.55"),
        ({"sigma_max": 0.7, "p": 0.1}, "rates: expected names among sigma_max, blur.sigma_max, .*, received 'p'"),
        (0.1, "rates: expected a mapping from names of rates to numbers, .*, received 0.1"),
    ]
    for rates, message in cases:
        for change in (attachment.set_rates, functools.partial(set_rates, plain)):
            with pytest.raises(ad.ArgumentError, match=message):
                change(rates)
    assert [site.spec for site in attachment.sites] == before
    with pytest.raises(ad.ArgumentError, match="rates: expected no names, since no spec here has a rate"):
        set_rates(MultiHeadAttention(2, 4, attention_drop="headmask(count=1)"), {"p": 0.1})
    attachment.remove()
    with pytest.raises(ad.AttachError, match="set_rates: expected an attachment that is in place"):
        attachment.set_rates({"sigma_max": 0.7})


def test_a_choice_keeps_its_weights_when_rates_are_set() -> None:
    layer = MultiHeadAttention(2, 4, attention_drop=ad.OneOf([ad.DropKey(0.1), ad.GaussianNoise(0.2)], [0.9, 0.1]))
    set_rates(layer, {"p": 0.3})
    assert layer.attention_drop == ad.OneOf([ad.DropKey(0.3), ad.GaussianNoise(0.2)], [0.9, 0.1])


@pytest.mark.filterwarnings("ignore:the attached spec .* has a consistency part")
def test_the_weight_of_a_consistency_loss_is_no_rate_of_the_attention() -> None:
    """All rates are in one tensor, in the order of the parts: that of the loss may come first."""
    layer = MultiHeadAttention(2, 4, attention_drop=ad.Compose([ad.Consistency(0.9), ad.DropKey(p=0.0)]))
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    trained, plain = (
        keras.ops.convert_to_numpy(keras.ops.stop_gradient(layer(x, x, training=on))) for on in (True, False)
    )
    assert trained == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize("how", ["attachment", "model", "progress"])
def test_a_callback_of_ones_own_may_set_rates(how: str) -> None:
    """`fit` on JAX keeps variables elsewhere between batches, and used to write the old rates back."""
    plain = model()
    attachment = attach(plain, ad.DropKey(sc.Linear(0.0, 0.4)))

    class Set(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if how == "progress":
                attachment.set_progress(batch / 2)
            elif how == "model":
                set_rates(plain, {"p": 0.2 * batch})
            else:
                attachment.set_rates({"p": 0.2 * batch})

    x, y = np.random.default_rng(0).normal(size=(16, 6, 8)), np.zeros(16, dtype="int32")
    plain.fit(x, y, batch_size=8, verbose=0, callbacks=[Set()])
    for site in attachment.sites:
        assert site.spec.p == pytest.approx(0.2)
        assert keras.ops.convert_to_numpy(site.rates.state) == pytest.approx([0.2])


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX keeps variables elsewhere during fit")
def test_rates_that_an_outer_model_would_overwrite_are_refused() -> None:
    inner = model()
    attachment = attach(inner, ad.DropKey(0.1))
    outer = ConsistencyModel(inner)
    outer.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    class Set(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            attachment.set_rates({"p": 0.4})

    x, y = np.random.default_rng(0).normal(size=(8, 6, 8)), np.zeros(8, dtype="int32")
    with pytest.raises(ad.AttachError, match="expected the model that is in `fit`, received a model inside it"):
        outer.fit(x, y, verbose=0, callbacks=[Set()])


def test_a_consistency_model_is_saved_with_its_schedule() -> None:
    made = ConsistencyModel(model(), ad.Consistency(sc.Linear(0.0, 1.0)))
    made._rates.set_progress(0.5)
    assert made.consistency == ad.Consistency(0.5)
    again = ConsistencyModel.from_config(made.get_config())
    again._rates.set_progress(1.0)
    assert again.consistency == ad.Consistency(1.0)


@pytest.mark.parametrize(
    "spec, message",
    [
        (ad.HardMasking(heads="stratified"), "heads: expected 'independent' in attentiondrop.keras"),
        (ad.HeadMask(choice="important"), "choice: expected 'random' in attentiondrop.keras, which does not measure"),
        (ad.DropKey(sc.PerHead([0.1, 0.2])), "p: expected a number or a schedule over training or layers"),
        (ad.HardMasking(p=ad.EntropyTarget(0.5)), "p: expected a number or a schedule over training or layers"),
        (ad.BlurSmoothing(ad.Learnable(0.2)), "sigma_max: expected a number or a schedule over training or layers"),
    ],
)
def test_what_keras_cannot_do_yet_is_said(spec: ad.Spec, message: str) -> None:
    with pytest.raises(ad.AttentionDropError, match=message):
        attach(model(), spec)
    with pytest.raises(ad.AttentionDropError, match=message):
        attention(*[np.ones((1, 3, 2, 4), dtype="float32")] * 3, spec, seed=0)


def test_functions_take_numbers() -> None:
    with pytest.raises(ad.AttentionDropError, match=r"drop.p: expected a number \(spec.at\(progress\)"):
        attention(*[np.ones((1, 3, 2, 4), dtype="float32")] * 3, ad.DropKey(sc.Linear(0.0, 0.1)), seed=0)


class Dip(sc.Schedule):
    """Too small at one place of the last layer, which it does not tell."""

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> float:
        return 0.1 if progress == 0.123 and layer == layers - 1 else 1.0 + progress

    def extremes(self) -> Any:
        yield from (0.1, 2.0)


@pytest.mark.parametrize("how", ["attachment", "callback"])
def test_a_progress_with_rates_that_do_not_fit_changes_nothing(how: str) -> None:
    plain = model()
    attachment = attach(plain, ad.BlurSmoothing(sigma_min=0.3, sigma_max=Dip()))
    callback = ScheduleCallback()
    callback.set_model(plain)
    setter: Any = attachment if how == "attachment" else callback
    setter.set_progress(0.5)
    with pytest.raises(ad.ArgumentError, match=r"sigma_min: expected at most sigma_max=0\.1"):
        setter.set_progress(0.123)
    assert setter.progress == 0.5
    assert [site.spec.sigma_max for site in attachment.sites] == [1.5, 1.5]
    for site in attachment.sites:
        assert keras.ops.convert_to_numpy(site.rates.state) == pytest.approx([1.5, 0.3])


def test_a_dip_between_quarters_is_found_before_training() -> None:
    dip = ad.BlurSmoothing(sigma_min=0.3, sigma_max=sc.Piecewise([0.0, 0.1, 0.2], [1.0, 0.1, 1.0]))
    attachment = attach(plain := model(), "hard(p=0.1)")
    for begin in (
        lambda: attach(plain, dip),
        lambda: attachment.update(dip),
        lambda: MultiHeadAttention(2, 4, attention_drop=dip),
    ):
        with pytest.raises(ad.ArgumentError, match=r"sigma_min: expected at most sigma_max=0\.1"):
            begin()
    assert [site.spec.name for site in attachment.sites] == ["hard", "hard"]


def test_update_refuses_a_pattern_that_matches_no_site() -> None:
    attachment = attach(model(), "hard(p=0.1)")
    with pytest.raises(ad.AttachError, match="pattern 'atention0' matches no attention site; there is attention0, "):
        attachment.update({"atention0": "blur", "*": "hard(p=0.2)"})
    assert [site.spec.p for site in attachment.sites] == [0.1, 0.1]
