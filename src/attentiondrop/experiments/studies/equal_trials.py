"""Tuning trials that are one and the same training. They make fewer settings of what counts as equally many."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..config.schema import TrainingSettings
from ..methods.comparators.none import Untouched
from ..methods.parse import read_method


def equal_trials(training: TrainingSettings, trials: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence for each method that has fewer different settings than trials: method -> its trials.

    This happens where a factor multiplies a setting that is 0, such as the `decay` of `none` without weight decay.

    >>> settings = TrainingSettings(weight_decay=0.0)
    >>> equal_trials(settings, {"none": ["none", "none(lr=2.0,decay=1.0)", "none(lr=1.0,decay=0.2)"]})
    ['tuning: none has 2 different settings in 3 trials, since training.weight_decay is 0; give others as tuning.grids']
    """
    lines, with_decay = [], dataclasses.replace(training, weight_decay=1.0)
    for method, tried in trials.items():
        different = _different(tried, training)
        if different < len(tried):
            is_decay = training.weight_decay == 0 and _different(tried, with_decay) > different
            why = ", since training.weight_decay is 0" if is_decay else ""
            settings = f"{different} different setting{'s' * (different != 1)}"
            lines.append(f"tuning: {method} has {settings} in {len(tried)} trials{why}; give others as tuning.grids")
    return lines


def _different(tried: Sequence[str], training: TrainingSettings) -> int:
    return len({_training(text, training) for text in tried})


def _training(text: str, training: TrainingSettings) -> Any:
    """What decides the training of a method: its settings, and all parts that do more than change these."""
    method = read_method(text)
    others = [str(part) for part in method.comparators if not isinstance(part, Untouched)]
    return str(method.training(training)), *others, str(method.spec)
