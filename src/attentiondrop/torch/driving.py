"""Schedules at a progress, as tensors: rates that change in place need no new graph, compiled or captured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..schedules import PerHead
from ..specs import Spec
from .draws import Driven, Values, numbered


def driven_at(
    spec: Spec, progress: float, layer: int, layers: int, module: nn.Module, before: Driven | None
) -> Driven | None:
    """`spec` with its schedules evaluated, for one of several layers; None if it has none.

    The tensors of `before` are written to, unless the module has moved to another device or dtype since.
    """
    if not any(leaf.scheduled() for _, leaf in numbered(spec)):
        return None
    like = next(module.parameters(), torch.empty(0))
    now = spec.at(progress, layer, layers)
    values: dict[int, dict[str, Tensor]] = {}
    for (number, scheduled), (_, leaf) in zip(numbered(spec), numbered(now), strict=True):
        values[number] = {field: _tensor(getattr(leaf, field), like) for field in scheduled.scheduled()}
    if before is None or not _alike(values, before.values):
        return Driven(now, values)
    # The numbers in its spec stay those of the first evaluation: nothing reads them where there is a tensor.
    for number, fields in values.items():
        for field, value in fields.items():
            before.values[number][field].copy_(value)
    return before


def _tensor(value: float | PerHead, like: Tensor) -> Tensor:
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.tensor(value.values if isinstance(value, PerHead) else value, dtype=dtype, device=like.device)


def _alike(values: Values, known: Values) -> bool:
    pairs = [(value, known[number][field]) for number, fields in values.items() for field, value in fields.items()]
    return all((a.shape, a.device, a.dtype) == (b.shape, b.device, b.dtype) for a, b in pairs)
