"""One step of training: forward, loss, backward, clipping, optimiser, average of the weights.

Everything that changes from step to step is in tensors (inputs, learning rate, rates, weights of parts), or outside of
this. So a step can be captured once and replayed, see `captured_step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ..methods.apply import Applied, Objective
from ..tasks.interface import Batch

#: What the mean loss of a part of a batch is multiplied by, None for nothing.
Weight = float | Tensor | None


class Step:
    """Takes one step of the optimiser with the parts of one batch, and adds its loss to `total`."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Any,
        applied: Applied,
        objective: Objective,
        clip: float | None = None,
        average: Average | None = None,
    ) -> None:
        self.accelerator, self.model, self.optimizer = accelerator, model, optimizer
        self.applied, self.objective, self.clip, self.average = applied, objective, clip, average
        #: The wrapper of the model does not know the rates that are learned.
        self._averages_rates = accelerator.num_processes > 1 and bool(applied.parameters())
        #: The sum of the losses of all steps since somebody set it to zero. It stays on the device.
        self.total = torch.zeros((), device=accelerator.device)

    def __call__(self, parts: Sequence[Batch], weights: Sequence[Weight]) -> None:
        """Take the step. Nothing here waits for the device."""
        begins = self.average is not None and self.average.begins
        self.compute(parts, weights, begins)
        self.count()

    def compute(self, parts: Sequence[Batch], weights: Sequence[Weight], begins: bool = False) -> None:
        """The part of the step that happens on the device. `begins` is that of the average."""
        accelerator = self.accelerator
        for part, weight in zip(parts, weights, strict=True):
            with accelerator.accumulate(self.model):
                with accelerator.autocast():
                    loss = self.objective(self.model, part)
                    loss = loss if weight is None else loss * weight
                accelerator.backward(loss)
                if self._averages_rates and accelerator.sync_gradients:
                    self.applied.average_gradients()
                if self.clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(self.model.parameters(), self.clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.total += loss.detach() / len(parts)
        self.applied.end_step()
        if self.average is not None:
            self.average.update(begins)

    def count(self) -> None:
        """The part of the step that happens on the host."""
        if self.average is not None:
            self.average.averaged.n_averaged += 1


class Average:
    """An exponential average of the weights, in torch's `AveragedModel`.

    By hand, since `AveragedModel.update_parameters` copies its counter to the device, and so waits for it in each step.
    """

    def __init__(self, averaged: AveragedModel, model: nn.Module, decay: float) -> None:
        self.averaged, self.decay = averaged, decay
        pairs = list(zip(_tensors(averaged.module), _tensors(model), strict=True))
        floats = [(own, new) for own, new in pairs if own.is_floating_point()]
        self._others = [(own, new) for own, new in pairs if not own.is_floating_point()]
        # A list for each dtype: only then is it one kernel for many tensors.
        self._floats = [
            tuple(zip(*((own, new) for own, new in floats if own.dtype == dtype), strict=True))
            for dtype in dict.fromkeys(own.dtype for own, _ in floats)
        ]

    @property
    def begins(self) -> bool:
        """Whether the next update is the first one. That one copies the weights, and the others mix them."""
        return int(self.averaged.n_averaged) == 0  # it stays on the CPU

    @torch.no_grad()
    def update(self, begins: bool) -> None:
        """Take the present weights into the average."""
        share = 1.0 if begins else 1.0 - self.decay
        for own, new in self._floats:
            torch._foreach_lerp_(own, new, share)
        for mine, other in self._others:
            mine.copy_(other if begins else mine * self.decay + other * (1 - self.decay))


def _tensors(module: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
