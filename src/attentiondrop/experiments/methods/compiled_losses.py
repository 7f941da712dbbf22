"""Losses as compiled code. With thousands of classes, each step of a formula is a pass over much memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ...torch.consistency.divergence import divergence
from ..tasks.interface import Task


def compiled_loss(task: Task) -> Callable[..., tuple[Tensor, float | Tensor]]:
    """The loss of a task, compiled once for all batches: a number that differs between them would compile it anew."""
    compiled = torch.compile(task.loss, dynamic=task.shapes_vary)

    def loss(output: Any, targets: Any, smoothing: float) -> tuple[Tensor, float | Tensor]:
        found: tuple[Tensor, float | Tensor] = compiled(output, _without_numbers(targets), smoothing)
        return found

    return loss


def compiled_losses_of_views(task: Task) -> Callable[..., tuple[Tensor, Tensor]]:
    """The mean task loss of views and the divergence between them, as one code: it reads their logits together."""

    def both(
        outputs: Sequence[Any], targets: Any, smoothing: float, counted: int, direction: str
    ) -> tuple[Tensor, Tensor]:
        apart = divergence([task.logits(output) for output in outputs], direction, task.mask(targets))
        losses = [task.loss(output, targets, smoothing) for output in outputs[:counted]]
        return torch.stack([total / count for total, count in losses]).mean(), apart

    compiled = torch.compile(both, dynamic=task.shapes_vary)

    def losses(outputs: Sequence[Any], targets: Any, smoothing: float, counted: int, direction: str) -> Any:
        return compiled(tuple(outputs), _without_numbers(targets), smoothing, counted, direction)

    return losses


def _without_numbers(targets: Any) -> Any:
    return tree_map_only(float, torch.tensor, targets)
