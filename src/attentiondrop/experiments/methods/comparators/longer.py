"""A control: no regulariser, but more epochs, as many as two passes per step would cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....validation import number
from .none import Untouched


@dataclass(frozen=True)
class Longer(Untouched):
    """`none` with `times` as many epochs, rounded. The schedule of the learning rate is stretched over all of them."""

    times: float = 2
    name = "longer"
    formula = "the same as `none`, with the number of epochs multiplied by `times`"
    reference = "control: the time of two passes, spent on more epochs"
    replaces = (*Untouched.replaces, "epochs")

    def _check(self) -> None:
        super()._check()
        number("times", self.times, minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        # One text for equal methods: `times=2`, also if 2.0 was given.
        object.__setattr__(self, "times", int(self.times) if float(self.times).is_integer() else self.times)

    def training(self, settings: Any) -> dict[str, Any]:
        """The epochs, multiplied, beside what `none` multiplies."""
        return super().training(settings) | {"epochs": round(settings.epochs * self.times)}
