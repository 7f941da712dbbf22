"""GPU seconds of a run: its steps times the time of a step that was measured alone."""

from __future__ import annotations

from collections.abc import Mapping

from ..runs.store import AT_ONCE
from ..studies.step_costs import StepCost
from .outcomes import Outcome


def gpu_seconds(each: Outcome, costs: Mapping[str, StepCost]) -> float | None:
    """The GPU seconds of a finished run; None if its step was not measured alone.

    Without a measured step, a run that had the device for itself counts with its own throughput.
    """
    run, result = each.run, each.result
    if run is None or result is None or result.status != "finished":
        return None
    cost = costs.get(each.method)
    if cost is not None and result.steps is not None:
        return result.steps * cost.seconds
    if run.environment.get(AT_ONCE, "1") != "1" or not result.throughput:
        return None
    # A resumed run of an older version may have recorded an epoch twice.
    samples = {epoch.epoch: epoch.samples for epoch in run.epochs}
    return sum(samples.values()) / result.throughput
