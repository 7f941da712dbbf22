"""`none`: no regulariser. What is tuned of it is the recipe's learning rate and weight decay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ....errors import bad_argument
from ....validation import number
from ..comparator import Comparator

#: Factors of the recipe's learning rate and weight decay; the recipe's own values come first.
FACTORS = [
    {"lr": lr, "decay": decay} for lr, decay in ((1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.2), (1.0, 5.0), (2.0, 5.0))
]


@dataclass(frozen=True)
class Untouched(Comparator):
    """No regulariser. `lr` and `decay` are factors for the learning rate and the weight decay of the recipe."""

    lr: float = 1.0
    decay: float = 1.0
    name = "none"
    group = "controls"
    grid = FACTORS
    perturbs = "nothing"
    formula = "the recipe, with its learning rate multiplied by `lr` and its weight decay by `decay`"
    reference = "AdamW: Loshchilov and Hutter 2019"
    replaces: ClassVar[tuple[str, ...]] = ("learning_rate", "weight_decay")

    def _check(self) -> None:
        if not number("lr", self.lr, 0.0) > 0:
            raise bad_argument("lr", "a number > 0", self.lr)
        number("decay", self.decay, 0.0)

    def training(self, settings: Any) -> dict[str, Any]:
        """The learning rate and the weight decay, multiplied."""
        return {
            "learning_rate": settings.learning_rate * self.lr,
            "weight_decay": settings.weight_decay * self.decay,
        }
