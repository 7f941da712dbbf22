"""The controller behind `EntropyTarget`: it writes to the tensor from which attention reads its rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...adaptive import EntropyTarget
from .lasting import lasting

#: The weight of a new measurement in the running mean: a few rows give a noisy estimate.
_WEIGHT = 0.1


class Controller:
    """Moves one rate of one site: `field` of the regulariser `number`.

    `values` is the mapping of the site. The controller keeps its entry `field` up to date.
    """

    def __init__(self, rule: EntropyTarget, values: dict[str, Any], number: int, field: str) -> None:
        self.rule, self.values, self.number, self.field = rule, values, number, field
        #: The running mean, NaN before the first measurement. That is a value, not a branch: a captured graph, which
        #: repeats what one call did, must treat its first call as such, too.
        self.estimate: Tensor | None = None
        #: The numbers of the rule, where the rate is. Compiled code that read them from the rule would be made for
        #: these numbers, and a run with another target would compile anew.
        rate: Tensor = values[field]
        numbers = [rule.target, rule.speed * (rule.high - rule.low), rule.low, rule.high]
        self._numbers = torch.tensor(numbers, dtype=rate.dtype, device=rate.device)

    def rate(self, heads: int) -> Tensor:
        """The present rate. With `per="head"`, the first call tells the number of heads, and so the shape."""
        rate: Tensor = self.values[self.field]
        if self.rule.per == "head" and rate.ndim == 0:
            with lasting():
                rate = self.values[self.field] = rate.expand(heads).clone()
        return rate

    def update(self, evenness: Tensor, new: Tensor | None = None) -> None:
        """Move the rate by the evenness [H] of one call, which is NaN where nothing could be measured.

        If `new` is False (a tensor, for compiled code), nothing changes.
        """
        rate = self.rate(len(evenness))
        if self._numbers.device != rate.device or self._numbers.dtype != rate.dtype:
            with lasting():
                self._numbers = self._numbers.to(rate)  # the module has moved
        target, speed, low, high = self._numbers.unbind()
        found = evenness.to(rate.dtype)
        if self.rule.per == "layer":
            found = found.nanmean()
        if new is not None:
            found = torch.where(new, found, torch.nan)
        unknown = found.isnan()
        if self.estimate is None:
            with lasting():
                self.estimate = torch.full_like(rate, torch.nan)
        first = torch.where(unknown, target, found)
        later = self.estimate.lerp(torch.where(unknown, self.estimate, found), _WEIGHT)
        self.estimate.copy_(torch.where(self.estimate.isnan(), first, later))
        step = speed * (target - self.estimate)
        rate.add_(step if new is None else step * new).clamp_(low, high)

    def state(self) -> dict[str, list[float] | float]:
        """Plain numbers, for a checkpoint."""
        known = self.estimate is not None and not bool(self.estimate.isnan().any())
        estimate = self.estimate.tolist() if self.estimate is not None and known else []
        return {"rate": self.values[self.field].tolist(), "estimate": estimate}

    def load(self, state: dict[str, list[float] | float]) -> None:
        """Restore what `state` returned, in the same tensors where shapes allow it: a captured graph reads them."""
        rate = self.values[self.field] = _put(self.values[self.field], state["rate"])
        estimate = state["estimate"]
        if estimate != []:
            self.estimate = _put(torch.empty_like(rate) if self.estimate is None else self.estimate, estimate)
        elif self.estimate is not None:
            self.estimate.fill_(torch.nan)


def _put(old: Tensor, numbers: list[float] | float) -> Tensor:
    """`numbers` in the tensor `old`, or in a new one if the shape differs. One number goes to all entries."""
    new = torch.tensor(numbers, dtype=old.dtype, device=old.device)
    return old.copy_(new) if new.ndim == 0 or new.shape == old.shape else new
