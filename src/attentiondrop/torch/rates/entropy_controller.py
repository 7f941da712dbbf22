"""The controller behind `EntropyTarget`: it writes to the tensor from which attention reads its rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...adaptive import EntropyTarget

#: The weight of a new measurement in the running mean: a few rows give a noisy estimate.
_WEIGHT = 0.1


class Controller:
    """Moves one rate of one site: `field` of the regulariser `number`.

    `values` is the mapping of the site. The controller keeps its entry `field` up to date.
    """

    def __init__(self, rule: EntropyTarget, values: dict[str, Any], number: int, field: str) -> None:
        self.rule, self.values, self.number, self.field = rule, values, number, field
        self.estimate: Tensor | None = None

    def rate(self, heads: int) -> Tensor:
        """The present rate. With `per="head"`, the first call tells the number of heads, and so the shape."""
        rate: Tensor = self.values[self.field]
        if self.rule.per == "head" and rate.ndim == 0:
            rate = self.values[self.field] = rate.expand(heads).clone()
        return rate

    def update(self, evenness: Tensor, new: Tensor | None = None) -> None:
        """Move the rate by the evenness [H] of one call, which is NaN where nothing could be measured.

        If `new` is False (a tensor, for compiled code), nothing changes.
        """
        rule, rate = self.rule, self.rate(len(evenness))
        found = evenness.to(rate.dtype)
        if rule.per == "layer":
            found = found.nanmean()
        if new is not None:
            found = torch.where(new, found, torch.nan)
        if self.estimate is None:
            self.estimate = torch.where(found.isnan(), rule.target, found)
        else:
            self.estimate.lerp_(torch.where(found.isnan(), self.estimate, found), _WEIGHT)
        step = rule.speed * (rule.high - rule.low) * (rule.target - self.estimate)
        rate.add_(step if new is None else step * new).clamp_(rule.low, rule.high)

    def state(self) -> dict[str, list[float] | float]:
        """Plain numbers, for a checkpoint."""
        estimate = [] if self.estimate is None else self.estimate.tolist()
        return {"rate": self.values[self.field].tolist(), "estimate": estimate}

    def load(self, state: dict[str, list[float] | float]) -> None:
        """Restore what `state` returned."""
        rate = self.values[self.field]
        self.values[self.field] = torch.tensor(state["rate"], dtype=rate.dtype, device=rate.device)
        estimate = state["estimate"]
        self.estimate = None if estimate == [] else torch.tensor(estimate, dtype=rate.dtype, device=rate.device)
