"""Sort the regularisers of a call by where a fused pass meets them, or say why they do not fit there."""

from __future__ import annotations

from typing import Any

from ...errors import BackendError
from ..call.leaves import Active, are_exclusive
from ..call.stages import PLACES, SINGLE, Drop, Plan, Stage
from ..eager.table import entry_of


def plan_of(leaves: list[Active]) -> Plan | str:
    """The plan, or the reason why there is none."""
    for leaf in leaves:
        if reason := _why_no_stage(leaf.spec):
            return reason
    logits = [leaf for leaf in leaves if leaf.spec.level == "logits"]
    for index, leaf in enumerate(logits):
        for later in logits[index + 1 :]:
            # Parts of a `OneOf` never act together, so their order says nothing.
            if _order(later) < _order(leaf) and not are_exclusive(leaf, later):
                return f"{later.spec.name} after {leaf.spec.name} needs the logits"
    found: dict[str, list[Active]] = {place: [] for place in PLACES}
    for leaf in leaves:
        place = stage_of(leaf.spec).place
        if place != "blur" or leaf.spec.width > 1:
            found[place].append(leaf)
    for single, plural in SINGLE.items():
        if len(found[single]) > 1:
            return f"there is no fused path for several {plural} at once"
    noise, drop, dropout = (next(iter(found[name]), None) for name in ("noise", "drop", "dropout"))
    return Plan(tuple(found["blur"]), noise, drop, dropout, tuple(found["heads"]))


def stage_of(spec: Any) -> Stage:
    """How a fused pass does one regulariser that has a stage."""
    stage = entry_of(spec).stage
    if stage is None:
        raise BackendError(f"{spec.name} has no fused path")
    return stage


def drop_of(leaf: Active | None, columns: int) -> Drop:
    """What the operator is told about the drop of a plan."""
    drop = None if leaf is None else stage_of(leaf.spec).drop
    return Drop("") if leaf is None or drop is None else drop(leaf.spec, columns)


def _why_no_stage(spec: Any) -> str | None:
    stage = entry_of(spec).stage
    return f"{spec.name} has no fused path" if stage is None else stage.why_not(spec)


def _order(leaf: Active) -> int:
    return PLACES.index(stage_of(leaf.spec).place)
