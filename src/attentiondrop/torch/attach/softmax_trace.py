"""Tell attention from other uses of softmax while a model runs.

A softmax is attention if its logits come from a product of two activations, and if its result is multiplied with other
activations in a further product. The softmax of a classifier, of a router of experts or of a loss is not: its logits
come from a product with a parameter, or no product follows. Each tensor between the first product and the last gets a
mark, stored with a weak reference to the tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

_PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "einsum", "baddbmm", "addbmm", "tensordot"}
_QUOTIENTS = {"div", "div_", "divide", "true_divide", "__truediv__", "__itruediv__"}
_DIFFERENCES = {"sub", "sub_", "subtract", "__sub__", "__isub__"}
_FACTORS = {"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"}
#: Functions whose results get no mark: they use parameters or reduce, so their results are no logits or weights.
_ENDS = {
    *("linear", "conv1d", "conv2d", "conv3d", "embedding", "bilinear"),
    *("layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"),
    *("sum", "mean", "amax", "amin", "max", "min", "norm", "var", "std", "argmax", "cumsum"),
    *("cross_entropy", "nll_loss", "kl_div", "mse_loss", "binary_cross_entropy_with_logits"),
}


class Mark(NamedTuple):
    """What a tensor is on the way from logits to weights (`kind`), and where the softmax was called (`place`)."""

    kind: str
    place: Any = None


#: The kinds in the order of the computation. If inputs have several marks, the result gets the last kind of them.
_ORDER = ("weight", "lse", "sum", "inverse", "product", "exp", "mixed", "log", "weights")


class SoftmaxTrace:
    """The marks of one pass. `locate` returns the place of the present call, or None for calls that do not count."""

    def __init__(self, constants: Iterator[Tensor], locate: Callable[[], Any]) -> None:
        self._constants = {id(x): x for x in constants}
        self._locate = locate
        self._marks: dict[int, tuple[weakref.ref[Tensor], Mark]] = {}

    def follow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Process one call of a torch function; if it shows that a softmax is attention, return the softmax's place."""
        inputs = list(_tensors((args, kwargs)))
        if name in _PRODUCTS:
            return self._product(inputs[-2:] if name in ("baddbmm", "addbmm") else inputs, result)
        marks = [self._mark(x) for x in inputs]
        first = marks[0] if marks else None
        second = marks[1] if len(marks) > 1 else None
        kinds = (first and first.kind, second and second.kind)
        if first is not None:
            new = self._step(name, first, kinds)
            if new is not None:
                if new.kind == "done":
                    return new.place
                return self._set(result, new)
        if name == "linear" or name in _ENDS:
            # Heads may be mixed by a linear layer after the softmax.
            if first is not None and first.kind == "weights" and name in ("linear", "conv2d"):
                self._set(result, first)
            return None
        known = [mark for mark in marks if mark is not None]
        if known:
            best = max(known, key=lambda mark: _ORDER.index(mark.kind))
            if best.kind != "weight" or len(known) == len(marks):
                self._set(result, best)
        return None

    def _step(self, name: str, first: Mark, kinds: tuple[str | None, str | None]) -> Mark | None:
        """The mark of the result of a call that leads from logits to weights, or None for other calls."""
        kind, place = first
        if kind == "product" and name in ("softmax", "_softmax", "log_softmax", "exp", "exp_", "logsumexp"):
            steps = {"log_softmax": "log", "exp": "exp", "exp_": "exp", "logsumexp": "lse"}
            here = self._locate()
            return None if here is None else Mark(steps.get(name, "weights"), (here, name))
        if kind == "log" and name in ("exp", "exp_"):
            return Mark("weights", place)
        if kind == "exp" and name == "sum":
            return Mark("sum", place)
        if kind == "exp" and name == "normalize":
            return Mark("weights", place)
        if kind == "sum" and name == "reciprocal":
            return Mark("inverse", place)
        if (kinds == ("exp", "sum") and name in _QUOTIENTS) or (kinds == ("exp", "inverse") and name in _FACTORS):
            return Mark("weights", place)
        if (kinds == ("mixed", "sum") and name in _QUOTIENTS) or (kinds == ("mixed", "inverse") and name in _FACTORS):
            return Mark("done", place)
        if kinds == ("product", "lse") and name in _DIFFERENCES:
            here = self._locate()
            return None if here is None else Mark("log", (here, name))
        return None

    def _product(self, inputs: list[Tensor], result: Any) -> Any:
        marks = {id(x): self._mark(x) for x in inputs}
        activations = [x for x in inputs if not _is(marks[id(x)], "weight")]
        weights = next((mark for mark in marks.values() if _is(mark, "weights")), None)
        if len(activations) < 2:
            if weights is not None:
                self._set(result, weights)
            return None
        if weights is not None:
            return weights.place
        exponential = next((mark for mark in marks.values() if _is(mark, "exp")), None)
        self._set(result, Mark("product") if exponential is None else Mark("mixed", exponential.place))
        return None

    def _mark(self, x: Tensor) -> Mark | None:
        if isinstance(x, nn.Parameter) or id(x) in self._constants:
            return Mark("weight")
        known = self._marks.get(id(x))
        return known[1] if known is not None and known[0]() is x else None

    def _set(self, result: Any, mark: Mark) -> None:
        for x in _tensors((result,)):
            if x.is_floating_point():
                self._marks[id(x)] = (weakref.ref(x), mark)


def _is(mark: Mark | None, kind: str) -> bool:
    return mark is not None and mark.kind == kind


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _tensors(entry)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
