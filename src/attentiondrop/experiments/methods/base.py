"""The comparators that are no attention specs, as data: what each does to the model, the weights or the loss.

The next comparator is a class here: its fields, what it contributes, its grid. `methods` reads it, `applying` applies
it, `tuning` finds its grid.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...specs import Consistency, r_drop
from ...validation import number

if TYPE_CHECKING:
    from torch import nn

#: Short name -> class, in order of definition.
REGULARISERS: dict[str, type[Regulariser]] = {}


@dataclass(frozen=True)
class Regulariser:
    """Base: a regulariser contributes model arguments, a change of the built model, or a part of the loss."""

    name: ClassVar[str] = ""
    #: What tuning tries: field -> values.
    grid: ClassVar[dict[str, list[Any]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            REGULARISERS[cls.name] = cls

    def __str__(self) -> str:
        fields = ",".join(f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self))
        return f"{self.name}({fields})"

    def model_rates(self) -> dict[str, float]:
        """Rates the model is built with: `dropout` (activations) and `drop_path`."""
        return {}

    def change(self, model: nn.Module) -> None:
        """Change the model after it was built; parameters and `state_dict` keys must stay."""

    @property
    def consistency(self) -> Consistency | None:
        """A consistency loss."""
        return None

    @property
    def label_smoothing(self) -> float:
        """Label smoothing in the cross entropy."""
        return 0.0


@dataclass(frozen=True)
class _Dropping(Regulariser):
    """Something is dropped with probability p."""

    p: float = 0.1
    grid = {"p": [0.05, 0.1, 0.2, 0.3]}

    def __post_init__(self) -> None:
        number("p", self.p, 0.0, 1.0)


@dataclass(frozen=True)
class Dropout(_Dropping):
    """Dropout of activations, by the model's own rates."""

    name = "dropout"

    def model_rates(self) -> dict[str, float]:
        """The rate of every dropout of activations that the model has."""
        return {"dropout": self.p}


@dataclass(frozen=True)
class DropPath(_Dropping):
    """Stochastic depth, by the model's own rate: residual branches are skipped, the later the likelier."""

    name = "droppath"

    def model_rates(self) -> dict[str, float]:
        """The rate of the last layer."""
        return {"drop_path": self.p}


@dataclass(frozen=True)
class DropConnect(_Dropping):
    """Weights of the linear layers are zeroed anew in every pass, and the others grow by 1 / (1 - p)."""

    name = "dropconnect"

    def change(self, model: nn.Module) -> None:
        """Swap the class of the linear layers."""
        from .dropconnect import drop_connections

        drop_connections(model, self.p)


@dataclass(frozen=True)
class RDrop(Regulariser):
    """R-Drop: dropout of activations, two passes, symmetric KL, the task loss averaged over both."""

    weight: float = 1.0
    p: float = 0.1
    name = "r-drop"
    grid = {"weight": [0.5, 1.0, 3.0], "p": [0.05, 0.1, 0.2]}

    def __post_init__(self) -> None:
        number("weight", self.weight, 0.0)
        number("p", self.p, 0.0, 1.0)

    def model_rates(self) -> dict[str, float]:
        """The dropout that makes its passes differ."""
        return {"dropout": self.p}

    @property
    def consistency(self) -> Consistency:
        """Symmetric, and the task loss over all views."""
        return r_drop(self.weight)


@dataclass(frozen=True)
class LabelSmoothing(Regulariser):
    """A share of the target goes to all classes evenly."""

    epsilon: float = 0.1
    name = "labelsmoothing"
    grid = {"epsilon": [0.05, 0.1, 0.2]}

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, 0.0, 1.0)

    @property
    def label_smoothing(self) -> float:
        """The share."""
        return self.epsilon
