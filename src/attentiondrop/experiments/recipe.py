"""What all runs of a comparison share: the data, the training settings, the device."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ..errors import bad_argument
from ..validation import integer, number, one_of

#: The data sets a recipe may name.
DATA = ("digits",)
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Recipe:
    """Settings of every run of a comparison; only method and seed differ between its runs.

    The defaults, and the model's initialisation, were picked by hand on the test accuracy of `none` and `dropout`:
    the digits have no validation part here. Good enough for a demonstration, not for a claim about a method.

    `samples` limits the training and the test half to that many images each, for tests and quick looks.

    >>> Recipe(epochs=3).to_dict()["epochs"]
    3
    """

    data: str = "digits"
    epochs: int = 20
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    warmup: float = 0.1
    samples: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        one_of("data", self.data, DATA)
        one_of("device", self.device, DEVICES)
        integer("epochs", self.epochs, minimum=1)
        integer("batch_size", self.batch_size, minimum=1)
        number("weight_decay", self.weight_decay, minimum=0.0)
        number("warmup", self.warmup, minimum=0.0, maximum=1.0)
        if not number("learning_rate", self.learning_rate, minimum=0.0) > 0:
            raise bad_argument("learning_rate", "a number > 0", self.learning_rate)
        if self.samples is not None:
            integer("samples", self.samples, minimum=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, as they are stored with each run and compared when it is resumed."""
        return dataclasses.asdict(self)
