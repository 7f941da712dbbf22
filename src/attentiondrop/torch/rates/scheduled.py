"""The rates of schedules, as tensors. They change in place, so compiled and captured graphs stay valid."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...adaptive import EntropyTarget, Learnable
from ...schedules import PerHead, Schedule
from ...specs import Spec
from ..call.leaves import Driven, places
from .entropy_controller import Controller
from .learned import LearnedRate


def driven_at(
    spec: Spec, progress: float, layer: int, layers: int, module: nn.Module, before: Driven | None
) -> Driven | None:
    """`spec` with its schedules evaluated, for one of several layers; None if it has no schedules.

    If `before` is given, its tensors get the new values in place, unless the module has moved to another device or
    dtype.
    """
    if not any(place.spec.scheduled() for place in places(spec)):
        return None
    like = next(module.parameters(), torch.empty(0))
    if like.is_meta:
        like = torch.empty(0, dtype=like.dtype)  # the model has no values yet, but a rate needs one
    now = spec.at(progress, layer, layers)
    values: dict[int, dict[str, Tensor | LearnedRate]] = {}
    for place, evaluated in zip(places(spec), places(now), strict=True):
        values[place.number] = {
            field: _value(schedule, getattr(evaluated.spec, field), like)
            for field, schedule in place.spec.scheduled().items()
        }
    if before is None:
        bounds = {
            number: {field: max(schedule.extremes()) for field, schedule in leaf.scheduled().items()}
            for number, leaf, _ in places(spec)
        }
        return Driven(now, values, bounds)
    # `before.spec` keeps the numbers of the first evaluation: where there is a tensor, nothing reads them.
    for number, leaf, _ in places(spec):
        for field, schedule in leaf.scheduled().items():
            old, new = before.values[number][field], values[number][field]
            # Progress does not set adaptive or learned rates. They only follow their module to its device.
            if isinstance(old, LearnedRate) or isinstance(new, LearnedRate):
                old.to(like.device)
                continue
            new = old.to(new) if isinstance(schedule, EntropyTarget) else new
            if (old.shape, old.device, old.dtype) == (new.shape, new.device, new.dtype):
                old.copy_(new)
            else:
                before.values[number][field] = new
    return before


def controllers_of(spec: Spec, driven: Driven | None) -> tuple[Controller, ...]:
    """A controller for each adaptive rate (`EntropyTarget`)."""
    if driven is None:
        return ()
    return tuple(
        Controller(schedule, driven.values[number], number, field)
        for number, leaf, _ in places(spec)
        for field, schedule in leaf.scheduled().items()
        if isinstance(schedule, EntropyTarget)
    )


def _value(schedule: Schedule, value: float | PerHead, like: Tensor) -> Tensor | LearnedRate:
    if isinstance(schedule, Learnable):
        return LearnedRate(schedule, like)
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.tensor(value.values if isinstance(value, PerHead) else value, dtype=dtype, device=like.device)
