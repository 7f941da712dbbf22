"""The rates of schedules, as tensors. They change in place, so compiled and captured graphs stay valid."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from ...adaptive import EntropyTarget, Learnable
from ...schedules import PerHead, Schedule
from ...specs import Compose, OneOf, Spec
from ..call.leaves import Bounds, Driven, places
from .entropy_controller import Controller
from .head_importance import importances_of
from .learned import LearnedRate

#: Bounds are rounded up to one of these, so that specs that differ in their rates alone share compiled code. The limits
#: that a path is chosen by must be among them.
STEPS = (0.15, math.inf)


def driven_at(
    spec: Spec, progress: float, layer: int, layers: int, module: nn.Module, before: Driven | None
) -> Driven | None:
    """`spec` with its schedules evaluated, for one of several layers; None if it has no schedules and keeps no state.

    If `before` is given, its tensors get the new values in place, unless the module has moved to another device or
    dtype.
    """
    like = next(module.parameters(), torch.empty(0))
    if like.is_meta:
        # The model has no values yet, but a rate needs one, also within `with torch.device("meta")`.
        like = torch.empty(0, dtype=like.dtype, device="cpu")
    states = importances_of(spec, like.device) if before is None else before.states
    for state in states.values():
        state.to(like.device)
    if not states and not any(place.spec.scheduled() for place in places(spec)):
        return None
    now = spec.at(progress, layer, layers)
    pairs = list(zip(places(spec), places(now), strict=True))
    if before is None:
        values: dict[int, dict[str, Tensor | LearnedRate]] = {
            place.number: {
                field: _value(schedule, getattr(evaluated.spec, field), like)
                for field, schedule in place.spec.scheduled().items()
            }
            for place, evaluated in pairs
        }
        bounds = {
            number: {field: _bound(schedule) for field, schedule in leaf.scheduled().items()}
            for number, leaf, _ in places(spec)
        }
        return Driven(_without_rates(spec), values, Bounds(bounds), states)
    for place, evaluated in pairs:
        for field, schedule in place.spec.scheduled().items():
            _move(before.values[place.number], field, schedule, getattr(evaluated.spec, field), like)
    return before


def changing_rates(spec: Spec, layer: int = 0, layers: int = 1) -> list[tuple[Spec, str]]:
    """The rates (regulariser, field) that depend on the progress; those of layers, heads and adaptive ones do not."""
    return [
        (leaf, field)
        for leaf in spec.leaves()
        for field, schedule in leaf.scheduled().items()
        if len({schedule.at(step / 100, layer, layers) for step in range(101)}) > 1
    ]


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
    return torch.tensor(_numbers(value), dtype=_dtype(like), device=like.device)


def _move(
    values: dict[str, Tensor | LearnedRate], field: str, schedule: Schedule, value: float | PerHead, like: Tensor
) -> None:
    """Give one rate its new value, in the same tensor unless the module has moved. This does not wait for a GPU."""
    old = values[field]
    # Progress does not set adaptive or learned rates. They only follow their module to its device.
    if isinstance(old, LearnedRate):
        old.to(like.device)
        return
    if isinstance(schedule, EntropyTarget):
        values[field] = old.to(like.device, _dtype(like))  # the same tensor, if nothing changes
        return
    numbers = _numbers(value)
    shape = (len(numbers),) if isinstance(numbers, tuple) else ()
    if (old.shape, old.device, old.dtype) != (shape, like.device, _dtype(like)):
        values[field] = torch.tensor(numbers, dtype=_dtype(like), device=like.device)
    elif isinstance(numbers, tuple):
        # (On the CPU, also if the user has set another default device.)
        new = torch.tensor(numbers, dtype=old.dtype, device="cpu")
        # From pageable memory the copy would wait for everything that the GPU still has to do.
        old.copy_(new.pin_memory() if old.is_cuda else new, non_blocking=True)
    else:
        old.fill_(numbers)


def _bound(schedule: Schedule) -> float:
    largest = max(schedule.extremes())
    return next(step for step in STEPS if largest <= step)


def _without_rates(spec: Spec) -> Spec:
    """`spec` with zeros for its schedules. Where there is a tensor, nothing reads the number.

    A compiler would compile again for another number, although nothing depends on it.
    """
    twin = copy.copy(spec)
    if isinstance(spec, Compose | OneOf):
        twin._set("parts", tuple(_without_rates(part) for part in spec.parts))
    else:
        for field in spec.scheduled():
            twin._set(field, 0.0)
    return twin


def _numbers(value: float | PerHead) -> float | tuple[float, ...]:
    return tuple(value.values) if isinstance(value, PerHead) else value


def _dtype(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype == torch.float64 else torch.float32
