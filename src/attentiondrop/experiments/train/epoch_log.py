"""What a run writes while it is trained: a line an epoch, weights, and the state to resume from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files.whole_files import append_line

EPOCHS = "metrics.jsonl"
BEST, LAST, STATE = "best.safetensors", "last.safetensors", "state.safetensors"


@dataclass(frozen=True)
class Epoch:
    """One epoch of training. What is measured at a few epochs only is None at the others."""

    #: Counted from one.
    epoch: int
    learning_rate: float
    #: None when it stopped being a number.
    train_loss: float | None
    #: Every metric on the validation part; None when the loss stopped being a number.
    validation: dict[str, float] | None
    #: Training alone, without validation and measurements.
    seconds: float
    samples: int
    #: The trace of the covariance of a mini-batch gradient, and the squared norm of the mean gradient.
    gradient_variance: float | None = None
    gradient_norm2: float | None = None
    #: Mean entropy of attention rows in nats, over heads and layers: of the model, and of what the method makes of it.
    attention_entropy: float | None = None
    perturbed_entropy: float | None = None


def write_epoch(folder: Path, epoch: Epoch) -> None:
    """Add an epoch."""
    append_line(folder / EPOCHS, dataclasses.asdict(epoch))


def upgraded_epoch(line: Any) -> Any:
    """A line as it is written today. Older versions had two scores of the validation part as fields of their own.

    >>> upgraded_epoch({"epoch": 1, "validation_accuracy": 0.5, "validation_nll": 1.2})
    {'epoch': 1, 'validation': {'accuracy': 0.5, 'nll': 1.2}}
    """
    if not isinstance(line, dict) or "validation_accuracy" not in line:
        return line
    line = dict(line)
    scores = {name: line.pop(f"validation_{name}", None) for name in ("accuracy", "nll")}
    return line | {"validation": None if None in scores.values() else scores}
