"""The tensors that a step of training changes: copied before something is tried, and put back after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .step import Step


class ChangedTensors:
    """Weights, buffers, state of the optimiser, average of weights, rates, sum of losses: all that a step changes."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def all(self) -> list[Tensor]:
        """All of them. A captured graph is of use as long as these stay the same, and it must keep them alive."""
        attachment = self._step.applied.attachment
        rates = [] if attachment is None else attachment.tensors()
        return [*(tensor for _, tensor in self._named()), *rates]

    def copy(self) -> dict[str, Any]:
        """Copies, on the CPU: on the device they would count in the peak of its memory."""
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._named()}
        return {"tensors": tensors, "applied": self._step.applied.state_dict(), "step": self._step.accelerator.step}

    @torch.no_grad()
    def put_back(self, copied: dict[str, Any]) -> None:
        """Give every tensor its value again, in place, and forget gradients."""
        step = self._step
        for name, tensor in self._named():
            if name in copied["tensors"]:
                tensor.copy_(copied["tensors"][name])
            else:
                tensor.zero_()  # a state of AdamW that was not there before: all of them begin with zero
        step.applied.load_state_dict(copied["applied"])
        step.optimizer.optimizer.zero_grad(set_to_none=True)
        step.accelerator.step = copied["step"]

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        step = self._step
        modules: dict[str, nn.Module] = {"model": step.accelerator.unwrap_model(step.model)}
        if step.average is not None:
            modules["average"] = step.average.averaged
        for kind, module in modules.items():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                yield f"{kind}.{name}", tensor
        numbers = {
            p: index for index, p in enumerate(p for group in step.optimizer.param_groups for p in group["params"])
        }
        for parameter, index in numbers.items():
            for name, value in step.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"optimizer.{index}.{name}", value
        yield "total", step.total
