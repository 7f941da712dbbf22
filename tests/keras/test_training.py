"""Training: seeds, compilers, schedules, and the consistency loss in `fit` and in loops of one's own."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras_parity import BACKEND, to_numpy
from small_models import JIT, QUICKEST, X, Y, classifier, compiled, fit, outputs

import attentiondrop as ad
import attentiondrop.keras as ak
from attentiondrop.errors import forget_warnings
from attentiondrop.keras import consistency

SPEC = ad.parse("hard(p=0.3,k=3)+noise(sigma=0.2)+drophead(p=0.2)")


def trained(seed: int, **options: bool) -> list[np.ndarray]:
    keras.utils.set_random_seed(seed)
    model = compiled(classifier(ak.MultiHeadAttention, attention_drop=SPEC), **options)
    fit(model)
    return model.get_weights()


def distance(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """The largest difference of any weight, of which most are of the order of 0.1."""
    return max(float(np.abs(x - y).max()) for x, y in zip(one, other, strict=True))


def test_a_seed_repeats_a_training_compiled_or_not() -> None:
    first, again, other = (trained(seed) for seed in (1, 1, 2))
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))
    assert any((x != y).any() for x, y in zip(first, other, strict=True))
    if JIT:
        # The same draws: what differs is the order in which sums are rounded.
        assert distance(trained(1, jit_compile=BACKEND != "jax"), first) < 1e-5


def test_attached_training_repeats_too() -> None:
    def run() -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        model = compiled(classifier())
        ak.attach(model, "dropkey(p=0.2)")
        fit(model)
        return model.get_weights()

    assert all(np.array_equal(x, y) for x, y in zip(run(), run(), strict=True))


def test_a_schedule_changes_rates_without_compiling_again() -> None:
    model = compiled(classifier(ak.MultiHeadAttention, attention_drop="hard(p=0.0,k=8,fill=-inf)"), jit_compile=JIT)
    traced: list[int] = []
    whole = ak.MultiHeadAttention.call

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        traced.append(1)
        return whole(self, *args, **kwargs)

    seen: list[float] = []

    def schedule(progress: float) -> float:
        seen.append(progress)
        return 0.5 * progress

    ak.MultiHeadAttention.call = counting
    try:
        callback = ak.ScheduleCallback({"p": schedule})
        fit(model, epochs=2, callbacks=[callback])
        first = len(traced)
        fit(model, epochs=4, callbacks=[callback])
    finally:
        ak.MultiHeadAttention.call = whole
    assert sorted(set(seen)) == [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875]
    assert model.get_layer("first").attention_drop.p == pytest.approx(0.4375)
    rates = to_numpy(keras.ops.convert_to_tensor(model.get_layer("second")._attentiondrop_site.rates.state))
    assert rates == pytest.approx([0.4375])
    if BACKEND != "torch":
        assert len(traced) == first


def test_a_compiled_step_reads_the_rates() -> None:
    """p = 0 trains as the stock layer does, and the same compiled step no longer does after a change."""

    stock = compiled(classifier())
    start = stock.get_weights()
    fit(stock)
    model = compiled(classifier(ak.MultiHeadAttention, attention_drop="dropkey(p=0.0)"), jit_compile=JIT)
    fit(model)

    def run(rate: float) -> list[np.ndarray]:
        model.set_weights(start)
        ak.set_rates(model, {"p": rate})
        fit(model)
        return model.get_weights()

    assert distance(run(0.0), stock.get_weights()) < 1e-5
    assert distance(run(0.5), stock.get_weights()) > 1e-3


def test_a_schedule_learns_the_length_of_an_epoch() -> None:
    seen: list[float] = []
    callback = ak.ScheduleCallback({"p": lambda progress: seen.append(progress) or 0.1})
    model = compiled(classifier(ak.MultiHeadAttention, attention_drop="hard"))
    callback.set_model(model)
    callback.set_params({"epochs": 2, "steps": None})
    callback.on_train_begin()
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        for batch in range(2):
            callback.on_train_batch_begin(batch)
            callback.on_train_batch_end(batch)
        callback.on_epoch_end(epoch)
    assert seen == [0, 0, 0.5, 0.5, 0.75]
    with pytest.raises(ad.ArgumentError, match="schedules: expected a mapping"):
        ak.ScheduleCallback({"p": 0.1})
    with pytest.raises(ad.ArgumentError, match="every: expected one of 'batch', 'epoch'"):
        ak.ScheduleCallback({"p": float}, every="step")
    with pytest.raises(ad.AttachError, match=r"expected regularised attention in .*, found none"):
        ak.set_rates(classifier(), {"p": 0.1})


def kl(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (one, other))
    return (p * (np.log(p) - np.log(q))).sum(-1)


def test_divergence_is_the_formula() -> None:
    views = list(np.random.default_rng(0).normal(size=(3, 4, 5, 6)))
    pairs = [(0, 1), (0, 2), (1, 2)]
    forward = np.mean([kl(views[a], views[b]) for a, b in pairs])
    reverse = np.mean([kl(views[b], views[a]) for a, b in pairs])
    tensors = [keras.ops.convert_to_tensor(view, dtype="float32") for view in views]
    found = {name: float(ak.divergence(tensors, name)) for name in ("forward", "reverse", "symmetric")}
    assert found == pytest.approx(
        {"forward": forward, "reverse": reverse, "symmetric": (forward + reverse) / 2}, rel=1e-5
    )
    softmaxed = [keras.ops.softmax(tensor) for tensor in tensors]
    assert float(ak.divergence(softmaxed, from_logits=False)) == pytest.approx(forward, rel=1e-5)
    mask = np.random.default_rng(1).random((4, 5)) < 0.5
    masked = np.mean([kl(views[a], views[b])[mask].mean() for a, b in pairs])
    assert float(ak.divergence(tensors, mask=mask)) == pytest.approx(masked, rel=1e-5)
    assert float(ak.divergence(tensors, mask=np.where(mask, 0.5, 0.0))) == pytest.approx(masked, rel=1e-5)
    assert float(ak.divergence(tensors, mask=np.zeros((4, 5), bool))) == 0
    with pytest.raises(ad.ShapeError, match="mask: expected 2 dimensions"):
        ak.divergence(tensors, mask=np.ones(4, bool))
    with pytest.raises(ad.ArgumentError, match="outputs: expected one tensor"):
        ak.divergence([{}, {}])
    with pytest.raises(ad.ArgumentError, match="direction: expected one of 'forward', 'reverse', 'symmetric'"):
        ak.divergence(tensors, "both")


@pytest.mark.parametrize("task", ["first", "mean"])
def test_the_consistency_loss_in_fit(task: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    inner = classifier(ak.MultiHeadAttention, attention_drop="hard(p=0.5,k=3)")
    model = ak.ConsistencyModel(inner, ad.Consistency(weight=0.7, task=task))
    compiled(model, **{"jit_compile": JIT} if task == "first" else QUICKEST, metrics=["accuracy"])
    before = [layer._attentiondrop_site.generator for layer in (inner.get_layer("first"), inner.get_layer("second"))]
    seeds = [keras.ops.convert_to_numpy(generator.state).copy() for generator in before]
    loss = model.fit(X, Y, batch_size=32, verbose=0, shuffle=False).history["loss"][0]

    # The same step by hand, from the same weights and seeds.
    keras.utils.set_random_seed(0)
    again = classifier(ak.MultiHeadAttention, attention_drop="hard(p=0.5,k=3)")
    for name, seed in zip(("first", "second"), seeds, strict=True):
        again.get_layer(name)._attentiondrop_site.generator.state.assign(seed)
    one, other = outputs(again, training=True), outputs(again, training=True)
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    tasks = [float(crossentropy(Y, view)) for view in (one, other)]
    expected = (tasks[0] if task == "first" else sum(tasks) / 2) + 0.7 * kl(one, other).mean()
    assert loss == pytest.approx(expected, rel=1e-4)

    model.fit(X, Y, verbose=0, callbacks=[ak.ScheduleCallback({"consistency.weight": lambda progress: 0.25})])
    assert model.consistency.weight == 0.25
    assert np.array_equal(outputs(model), outputs(inner))
    model.save(tmp_path / "it.keras")
    loaded = keras.models.load_model(tmp_path / "it.keras")
    assert loaded.consistency == model.consistency and np.array_equal(outputs(loaded), outputs(model))


WITH_LOSS = "blur(sigma_max=2.0)+consistency(weight=0.7,views=3)"


def test_a_consistency_part_that_nobody_computes_is_told() -> None:
    forget_warnings()
    model = classifier()
    ak.attach(model, WITH_LOSS)
    compiled(model, **QUICKEST)
    with pytest.warns(ad.AttentionDropWarning, match=r"has a consistency part.*ConsistencyModel\(model\)"):
        fit(model)
    forget_warnings()
    layer, logits = ak.AttentionDrop(WITH_LOSS), np.zeros((1, 1, 2, 2), "float32")
    layer(logits, training=False)
    with pytest.warns(ad.AttentionDropWarning, match="has a consistency part"):
        layer(logits)


def test_a_consistency_part_is_the_loss_of_the_model_around_it() -> None:
    forget_warnings()
    inner = classifier()
    ak.attach(inner, WITH_LOSS)
    model = ak.ConsistencyModel(inner)
    assert str(model.consistency) == "consistency(weight=0.7,views=3)"
    assert ak.ConsistencyModel(inner, ad.Consistency(weight=0.2)).consistency.weight == pytest.approx(0.2)
    assert ak.ConsistencyModel(classifier()).consistency == ad.Consistency()
    compiled(model, **QUICKEST)
    with warnings.catch_warnings(action="error", category=ad.AttentionDropWarning):
        fit(model)
        ak.consistency_loss(inner, X, keras.ops.mean, ad.Consistency(weight=0.2))
        outputs(inner, training=True)  # somebody knows of the loss


def test_a_consistency_model_follows_the_attached_specs() -> None:
    inner = classifier()
    model = ak.ConsistencyModel(inner)
    attachment = ak.attach(model, ad.Compose([ad.DropKey(0.5), ad.Consistency(ad.schedules.Linear(0.0, 2.0), views=3)]))
    compiled(model, **QUICKEST)
    assert model.consistency == ad.Consistency(0.0, views=3)
    attachment.set_progress(0.5)
    assert model.consistency.weight == 1.0
    attachment.set_rates({"consistency.weight": 1e6})
    assert fit(model).history["loss"][0] > 100, "the step has read another weight"
    with_schedule = ad.Consistency(ad.schedules.Linear(0.0, 2.0), views=3)
    assert model.get_config()["consistency"] == with_schedule.to_dict()
    given = ak.ConsistencyModel(inner, ad.Consistency(0.2))
    attachment.set_rates({"consistency.weight": 3.0})
    assert given.consistency == ad.Consistency(0.2)
    attachment.remove()
    assert model.consistency == ad.Consistency()


@pytest.mark.parametrize("task", ["first", "mean"])
def test_losses_that_layers_add_count_once(task: str) -> None:
    """They belong to the task: of several equal views, the loss is that of one."""
    x = keras.Input((8, 12))
    plain = keras.Model(
        x, keras.layers.ActivityRegularization(l2=0.1)(keras.layers.Dense(3)(keras.layers.Flatten()(x)))
    )
    plain.layers[-2].kernel.regularizer = keras.regularizers.L2(0.1)
    model = compiled(ak.ConsistencyModel(plain, ad.Consistency(0.5, views=3, task=task)), **QUICKEST)
    want = plain.get_weights()
    again = fit(model).history["loss"]
    plain.set_weights(want)
    compiled(plain, **QUICKEST)
    assert again == pytest.approx(fit(plain).history["loss"], rel=1e-5)
    # An evaluation after a step has only the losses of its own pass.
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(plain.evaluate(X, Y, verbose=0), rel=1e-5)


def test_padding_does_not_count_in_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a step of JAX, Keras keeps masks beside the tensors and not on them."""
    seen: list[Any] = []
    whole = consistency.divergence

    def divergence(outputs: Any, direction: str, from_logits: bool, mask: Any) -> Any:
        seen.append(mask)
        return whole(outputs, direction, from_logits, mask)

    monkeypatch.setattr(consistency, "divergence", divergence)
    tokens = np.array([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0]])
    inputs = keras.Input((5,))
    embedded = keras.layers.Embedding(6, 12, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dropout(0.5)(embedded)))
    compiled(ak.ConsistencyModel(model), **QUICKEST).fit(tokens, np.zeros((2, 5)), verbose=0)
    assert seen and all(mask is not None and tuple(mask.shape) == (2, 5) for mask in seen)


@pytest.mark.parametrize("task", ["first", "mean"])
def test_the_consistency_loss_in_a_loop_of_ones_own(task: str) -> None:
    views = iter(keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(3, 4, 5)), dtype="float32"))
    consistency = ad.Consistency(weight=0.5, views=3, task=task)
    result = ak.consistency_loss(
        lambda inputs, training: next(views), None, lambda x: keras.ops.sum(x * x), consistency
    )
    each = [float((to_numpy(output) ** 2).sum()) for output in result.outputs]
    assert float(result.task) == pytest.approx(each[0] if task == "first" else sum(each) / 3)
    assert float(result.loss) == pytest.approx(float(result.task) + 0.5 * float(result.divergence))


def test_a_loop_of_ones_own_takes_the_attached_settings_and_any_number_as_task() -> None:
    model = classifier()
    attachment = ak.attach(model, ad.Compose([ad.DropKey(0.5), ad.Consistency(ad.schedules.Linear(0.0, 2.0), views=3)]))
    attachment.set_progress(0.5)
    result = ak.consistency_loss(model, X[:4], lambda output: 3.0)
    assert len(result.outputs) == 3 and float(result.divergence) > 0
    assert float(result.loss) == pytest.approx(3.0 + 1.0 * float(result.divergence))


def test_consistency_arguments_are_named() -> None:
    with pytest.raises(ad.ArgumentError, match=r"model: expected a keras.Model"):
        ak.ConsistencyModel(keras.layers.Dense(3))
    with pytest.raises(ad.ArgumentError, match=r"consistency: expected attentiondrop.Consistency"):
        ak.ConsistencyModel(classifier(), "consistency")
    with pytest.raises(ad.ArgumentError, match=r"consistency: expected attentiondrop.Consistency"):
        ak.consistency_loss(classifier(), X, keras.ops.mean, 0.5)
    with pytest.raises(ad.ArgumentError, match=r"no consistency settings: pass consistency="):
        ak.consistency_loss(classifier(), X, keras.ops.mean)
    with pytest.raises(ad.ArgumentError, match=r"consistency.weight: expected a number \(spec.at"):
        ak.consistency_loss(classifier(), X, keras.ops.mean, ad.Consistency(ad.schedules.Linear(0.0, 1.0)))
    view = keras.ops.ones((4, 3))
    for views in ([], [view], [view, view[:1]], [view, view[0]]):
        with pytest.raises(ad.ShapeError, match="outputs: expected two or more views of equal shapes, received"):
            ak.divergence(views)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's own ways of training")
def test_tf_data_and_a_gradient_tape() -> None:
    import tensorflow as tf

    inner = classifier(ak.MultiHeadAttention, attention_drop="blur(sigma_max=1.0)")
    model = compiled(ak.ConsistencyModel(inner, ad.Consistency(weight=0.5)), jit_compile=False)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    assert np.isfinite(model.fit(data, verbose=0, shuffle=False).history["loss"]).all()

    @tf.function(jit_compile=True)
    def step() -> Any:
        with tf.GradientTape() as tape:
            result = ak.consistency_loss(
                inner,
                X,
                lambda output: keras.losses.SparseCategoricalCrossentropy(from_logits=True)(Y, output),
                ad.Consistency(weight=0.5, direction="symmetric", task="mean"),
            )
        return result, tape.gradient(result.loss, inner.trainable_variables)

    result, gradients = step()
    views = [to_numpy(output) for output in result.outputs]
    apart = (kl(views[0], views[1]).mean() + kl(views[1], views[0]).mean()) / 2
    assert float(result.divergence) == pytest.approx(apart, rel=1e-3) and len(views) == 2
    assert float(result.loss) == pytest.approx(float(result.task) + 0.5 * apart, rel=1e-4)
    assert all(gradient is not None for gradient in gradients)
