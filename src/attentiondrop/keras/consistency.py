"""The consistency loss: several perturbed passes over the same input that should agree."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops
from keras.src.backend import get_keras_mask

from ..building import from_dict
from ..errors import ArgumentError, ShapeError, bad_argument
from ..specs import Consistency
from ..specs.consistency import first_consistency
from ..validation import one_of
from .attach import named_layers
from .functional import check_numbers
from .rates import Rates
from .reminders import computing_loss
from .sites import Site, site_of

Tensor = Any


class ConsistencyResult(NamedTuple):
    """`loss` is `task + weight * divergence`; `outputs` has one entry for each view."""

    loss: Tensor
    task: Tensor
    divergence: Tensor
    outputs: tuple[Tensor, ...]


def divergence(
    outputs: Sequence[Tensor],
    direction: str = "forward",
    from_logits: bool = True,
    mask: Tensor | None = None,
) -> Tensor:
    """The mean over all pairs of views of the KL divergence between their predictions.

    Args:
        outputs: [..., classes] of each view: logits, or probabilities with `from_logits=False`.
        direction: "forward" `KL(a || b)` for `a` before `b`, "reverse", or "symmetric", the mean of both.
        from_logits: whether the outputs are logits.
        mask: True (or not 0) at the positions that count, [...] without the classes; all by default.

    Example:
        >>> view = keras.ops.array([[2.0, 0.0], [0.0, 1.0]])
        >>> float(divergence([view, view]))
        0.0
    """
    one_of("direction", direction, ("forward", "reverse", "symmetric"))
    for output in outputs:
        if not hasattr(output, "shape"):
            raise bad_argument("outputs", "one tensor of logits or probabilities a view", type(output).__name__)
    shapes = [tuple(output.shape) for output in outputs]
    if len(shapes) < 2 or not all(_may_be_equal(shape, shapes[0]) for shape in shapes):
        raise ShapeError(f"outputs: expected two or more views of equal shapes, received {shapes}")
    logs = [_log_probabilities(output, from_logits) for output in outputs]
    total = 0.0
    pairs = list(itertools.combinations(logs, 2))
    for one, other in pairs:
        if direction in ("forward", "symmetric"):
            total = total + _mean_kl(one, other, mask)
        if direction in ("reverse", "symmetric"):
            total = total + _mean_kl(other, one, mask)
    return total / (len(pairs) * (2 if direction == "symmetric" else 1))


def _may_be_equal(one: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    """Whether two shapes can be equal. While a graph is traced, sizes may be unknown (None)."""
    return len(one) == len(other) and all(None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True))


def _log_probabilities(output: Tensor, from_logits: bool) -> Tensor:
    wide = ops.cast(output, "float64" if "float64" in str(output.dtype) else "float32")
    if from_logits:
        return ops.log_softmax(wide, axis=-1)
    # The same floor as in Keras's own losses: the logarithm of a probability of 0 stays finite.
    return ops.log(ops.clip(wide, keras.config.epsilon(), 1.0))


def _mean_kl(one: Tensor, other: Tensor, mask: Tensor | None) -> Tensor:
    each = ops.sum(ops.exp(one) * (one - other), axis=-1)
    if mask is None:
        return ops.mean(each)
    mask = ops.convert_to_tensor(mask)
    if len(mask.shape) != len(each.shape):
        raise ShapeError(
            f"mask: expected {len(each.shape)} dimensions, those of the outputs without the classes, "
            f"received {list(mask.shape)}"
        )
    mask = ops.cast(mask, "bool")
    shown = ops.where(mask, each, ops.zeros_like(each))
    total = ops.sum(ops.broadcast_to(ops.cast(mask, each.dtype), ops.shape(each)))
    return ops.sum(shown) / ops.where(total > 0, total, ops.ones_like(total))


def consistency_loss(
    model: Callable[..., Tensor],
    inputs: Any,
    task_loss: Callable[[Tensor], Tensor],
    consistency: Consistency | None = None,
    *,
    from_logits: bool = True,
    mask: Tensor | None = None,
) -> ConsistencyResult:
    """The loss for a custom training loop: several passes with different draws, and a penalty if they disagree.

    Args:
        model: called as `model(inputs, training=True)` once for each view.
        inputs: the first argument of the model.
        task_loss: maps the output of one view to its loss.
        consistency: how many views, which divergence, and its weight; by default the `Consistency` in the attached
            specs, with its present weight.
        from_logits: whether the model gives logits, or probabilities.
        mask: which positions of a sequence count; the Keras mask of the output by default.

    Example:
        >>> import attentiondrop as ad
        >>> model = keras.Sequential([keras.layers.Dropout(0.5), keras.layers.Dense(3)])
        >>> result = consistency_loss(model, keras.ops.ones((4, 8)), keras.ops.mean, ad.Consistency(weight=0.5))
        >>> bool(result.divergence > 0), len(result.outputs)
        (True, 2)
    """
    if consistency is None:
        consistency = first_consistency(site.spec for site in _sites(model))
        if consistency is None:
            raise ArgumentError(
                "no consistency settings: pass consistency=attentiondrop.Consistency(weight=0.5), or attach a spec "
                "that ends in +consistency(weight=0.5)"
            )
    if not isinstance(consistency, Consistency):
        raise bad_argument("consistency", "attentiondrop.Consistency(...)", consistency)
    check_numbers("consistency", consistency)
    with computing_loss():
        outputs = tuple(model(inputs, training=True) for _ in range(consistency.views))
    counted = outputs[: 1 if consistency.task == "first" else None]
    task = ops.convert_to_tensor(sum(task_loss(output) for output in counted) / len(counted))
    mask = get_keras_mask(outputs[0]) if mask is None else mask
    apart = divergence(outputs, consistency.direction, from_logits, mask)
    weighted = ops.cast(apart, task.dtype) * consistency.weight
    return ConsistencyResult(task + weighted, task, apart, outputs)


def _sites(model: Any) -> list[Site]:
    """The sites of all layers of a model; none if it is a plain function."""
    layers = named_layers(model) if isinstance(model, keras.layers.Layer) else ()
    return [site for _, layer in layers if (site := site_of(layer)) is not None]


class _Views:
    """What the present step computed, in an object that Keras's attribute tracking does not look into."""

    outputs: tuple[Tensor, ...] = ()
    #: The losses that layers added, for each view.
    added: tuple[tuple[Tensor, ...], ...] = ()


@keras.saving.register_keras_serializable(package="attentiondrop")
class ConsistencyModel(keras.Model):
    """A model whose training adds the consistency loss; works with `compile`, `fit` and all their arguments.

    In training it runs `model` once for each view; the metrics see the first view. In evaluation it computes `model`,
    with which it shares its weights: save `.model` for files that fit the plain model. The weight of the loss is a
    rate: `ScheduleCallback({"consistency.weight": ...})` can change it.

    Args:
        model: gives one tensor of logits, or of probabilities with `from_logits=False`.
        consistency: how many views, which divergence, and its weight; by default the `Consistency` in the attached
            specs, also if they are attached or changed later, or else `Consistency()`.
        from_logits: whether the model gives logits.
        **kwargs: as for any Keras model.

    Example:
        >>> import attentiondrop as ad
        >>> plain = keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.5), keras.layers.Dense(3)])
        >>> model = ConsistencyModel(plain, ad.Consistency(weight=0.5))
        >>> model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        >>> history = model.fit(keras.ops.ones((4, 8)), keras.ops.zeros((4,), "int32"), verbose=0)
    """

    def __init__(
        self, model: Any, consistency: Consistency | None = None, from_logits: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(model, keras.Model):
            raise bad_argument("model", "a keras.Model", type(model).__name__)
        follows = consistency is None
        if consistency is None:
            consistency = first_consistency(site.rates.template for site in _sites(model)) or Consistency()
        if not isinstance(consistency, Consistency):
            raise bad_argument("consistency", "attentiondrop.Consistency(...)", consistency)
        self.model = model
        self.from_logits = from_logits
        self._rates = Rates(consistency)
        self._follows_specs = follows
        self._seed_generators.append(self._rates)
        self._views = _Views()

    @property
    def consistency(self) -> Consistency:
        """The loss, with its present weight."""
        spec: Any = self._present_rates().spec
        result: Consistency = spec.consistency
        return result

    def _present_rates(self) -> Rates:
        """The rates that hold the loss: those of an attached spec, unless the loss was given."""
        sites = _sites(self.model) if self._follows_specs else []
        return next((site.rates for site in sites if site.spec.consistency is not None), self._rates)

    @property
    def losses(self) -> list[Tensor]:
        """The consistency loss, those of weights, and those that layers add: of the first view, or the mean over all.

        Losses that layers add belong to the task. Keras itself would count those of every view (on JAX, of the last).
        """
        found: list[Tensor] = super().losses
        if self._losses_override or not self._views.added:
            return found
        known = {id(loss) for added in self._views.added for loss in added}
        own = [loss for loss in found if id(loss) not in known]
        if self.consistency.task == "first":
            return [*own, *self._views.added[0]]
        return [*own, *(loss / len(self._views.added) for added in self._views.added for loss in added)]

    def _view(self, inputs: Any) -> Tensor:
        """The output of one more view."""
        before = {id(loss) for added in self._views.added for loss in added}
        output = self.model(inputs, training=True)
        added = (loss for layer in self.model._flatten_layers() for loss in layer._get_own_losses())
        self._views.added += (tuple(loss for loss in added if id(loss) not in before),)
        return output

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        """The output of the model. In training it is that of the first view, and the consistency loss is added."""
        self._views.added = ()
        if not training:
            return self.model(inputs, training=training)
        rates = self._present_rates()
        spec = self.consistency
        with computing_loss():
            outputs = tuple(self._view(inputs) for _ in range(spec.views))
        apart = divergence(outputs, spec.direction, self.from_logits, get_keras_mask(outputs[0]))
        self.add_loss(apart * ops.cast(rates.number("consistency.weight"), apart.dtype))
        self._views.outputs = outputs
        return outputs[0]

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Tensor:
        """The loss given to `compile`, of the first view or the mean over all, plus the losses that layers add."""
        counted = self._views.outputs if training and self.consistency.task == "mean" else ()
        task = super().compute_loss
        each = [task(x, y, output, sample_weight, training) for output in counted or (y_pred,)]
        self._views.outputs, self._views.added = (), ()
        return sum(each) / len(each) if counted else each[0]

    def get_config(self) -> dict[str, Any]:
        """The inner model and the loss."""
        template: Any = self._present_rates().template.consistency
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
            "consistency": template.to_dict(),
            "from_logits": self.from_logits,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The model that `get_config` described."""
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        return cls(**{**config, "model": model, "consistency": from_dict(config["consistency"])})
