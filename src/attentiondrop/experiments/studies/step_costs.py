"""The time of a training step of each method, measured alone: `costs.json` in the folder of a study.

Runs that share a GPU slow each other down, so their own times say nothing about the cost of a method.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import AttentionDropError
from ..config.schema import Recipe
from ..files.typed_settings import build_settings
from ..files.whole_files import damaged, read_json, write_json
from ..methods.parse import read_method

COSTS = "costs.json"
#: Epochs that are timed, after one that compiles and captures.
_REPEATS = 3


@dataclass(frozen=True)
class StepCost:
    """The time of a step, and how it was measured."""

    #: The median over some epochs; a step includes the augmentation of its batch.
    seconds: float
    #: "captured" where steps were replayed as CUDA graphs, else why not.
    capture: str
    device: str


def read_costs(folder: Path) -> dict[str, StepCost]:
    """Method, as it is written in full -> its cost. Empty if nothing was measured."""
    content: Any = read_json(folder / COSTS)
    if content is None:
        return {}
    try:
        return {method: build_settings(StepCost, cost) for method, cost in content.items()}
    except (AttentionDropError, AttributeError, TypeError) as error:
        raise damaged(folder / COSTS, error) from error


def measure_costs(
    recipe: Recipe,
    methods: Sequence[str],
    folder: Path,
    say: Callable[[str], None] = lambda line: None,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[str, StepCost]:
    """Measure the methods that `folder` has no cost of, one after the other, and write each at once.

    A cost of another device is measured again: times of two devices must not be compared. Nothing else may use the
    device. Ends early when `is_over()`.
    """
    from ..runs.environment import environment
    from ..runs.execute import data_for
    from ..train.accelerator import device_of
    from ..train.loop import Training

    found = read_costs(folder)
    device = environment(device_of(recipe.training), 1)["device"]
    for text in methods:
        method = read_method(text)
        if method.text in found and found[method.text].device == device:
            continue
        if is_over():
            break
        with tempfile.TemporaryDirectory() as place:
            training = Training(recipe, method, 0, data_for(recipe), Path(place))
            times = training.step_times(_REPEATS)
        found[method.text] = StepCost(statistics.median(times), training.captured, device)
        write_json(folder / COSTS, {name: dataclasses.asdict(cost) for name, cost in found.items()})
        say(f"{method.text}: {1e3 * found[method.text].seconds:.2f} ms a step, {training.captured}")
    return found
