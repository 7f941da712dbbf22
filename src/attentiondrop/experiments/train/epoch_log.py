"""What a run writes while it is trained: a line per epoch, weights, and the state to resume from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files.whole_files import append_line

EPOCHS = "metrics.jsonl"
BEST, LAST, STATE = "best.safetensors", "last.safetensors", "state.safetensors"


def rates_of(weights: Path) -> Path:
    """The file beside weights that has the rates which were learned, or have adapted, with them."""
    return weights.with_name(f"{weights.stem}_rates.safetensors")


@dataclass(frozen=True)
class Epoch:
    """One epoch of training. Fields that are measured only at some epochs are None at the others."""

    #: Counted from one.
    epoch: int
    learning_rate: float
    #: None if the loss was not a finite number.
    train_loss: float | None
    #: Every metric on the validation part; None if the loss was not a finite number.
    validation: dict[str, float] | None
    #: The time of training, without validation and measurements.
    seconds: float
    samples: int
    #: The trace of the covariance of a mini-batch gradient, and the squared norm of the mean gradient.
    gradient_variance: float | None = None
    gradient_norm2: float | None = None
    #: Mean entropy of attention rows in nats, over heads and layers: before and after the method changes the attention.
    attention_entropy: float | None = None
    perturbed_entropy: float | None = None


def write_epoch(folder: Path, epoch: Epoch) -> None:
    """Add the line of an epoch."""
    append_line(folder / EPOCHS, dataclasses.asdict(epoch))


def upgraded_epoch(line: Any) -> Any:
    """A line in today's form. Older versions stored two validation scores as separate fields.

    >>> upgraded_epoch({"epoch": 1, "validation_accuracy": 0.5, "validation_nll": 1.2})
    {'epoch': 1, 'validation': {'accuracy': 0.5, 'nll': 1.2}}
    """
    if not isinstance(line, dict) or "validation_accuracy" not in line:
        return line
    line = dict(line)
    scores = {name: line.pop(f"validation_{name}", None) for name in ("accuracy", "nll")}
    return line | {"validation": None if None in scores.values() else scores}
