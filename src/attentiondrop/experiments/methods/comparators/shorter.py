"""A part of other methods: fewer epochs, so that a method with two passes takes the time of fewer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....errors import bad_argument
from ....validation import number
from ..comparator import Comparator


@dataclass(frozen=True)
class Shorter(Comparator):
    """`times` as many epochs, rounded. The schedule of the learning rate is shortened with them."""

    times: float = 0.66
    name = "shorter"
    grid = [{"times": 0.66}]
    perturbs = "nothing"
    formula = "the method that it is joined with, with the number of epochs multiplied by `times`"
    reference = "control: two passes in the time of 1.32"
    replaces = ("epochs",)

    def _check(self) -> None:
        if not number("times", self.times, 0.0, 1.0) > 0:
            raise bad_argument("times", "a number > 0", self.times)

    def training(self, settings: Any) -> dict[str, Any]:
        """The epochs, multiplied; at least one."""
        return {"epochs": max(1, round(settings.epochs * self.times))}
