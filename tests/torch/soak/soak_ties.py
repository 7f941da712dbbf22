"""Logits so close to each other that a rounding could decide which of them is the larger.

What is selected by the order of the logits is then another set in float32 than in float64, and both are right. So the
soak test takes data without such pairs: it watches every selection of the eager path, in both precisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from attentiondrop.torch.eager import regularisers


class Selection(NamedTuple):
    """The visible logits of one selection, and by how much each row's order is decided where it matters."""

    logits: Tensor
    margins: Tensor


@contextmanager
def watched() -> Iterator[list[Selection]]:
    """The selections that eager attention makes meanwhile, in order."""
    found: list[Selection] = []
    top_k, by_key, keep_one = (
        regularisers.top_k,
        regularisers.by_key,
        regularisers.without_emptying,
    )

    def note(logits: Tensor, visible: Tensor | None, first: int, last: int, rows: Tensor | None = None) -> None:
        """Rows whose `first`-th to `last`-th largest logits must each be larger than the next."""
        shown = logits.detach().double()
        if visible is not None:
            shown = shown.masked_fill(~visible, -torch.inf)
        falling = F.pad(shown.sort(dim=-1, descending=True).values, (0, 1), value=-torch.inf)
        gaps = (falling[..., :-1] - falling[..., 1:]).masked_fill(falling[..., 1:].isinf(), torch.inf)
        # Logits that were set to 0 are equal in every precision, and the lower key comes first: what matters then is how
        # far the others are from them.
        zeros = (falling[..., :-1] == 0) & (falling[..., 1:] == 0)
        margins = gaps.masked_fill(zeros, torch.inf)
        tied = zeros[..., first - 1 : last].any(-1, keepdim=True)
        margins = torch.where(tied, margins.amin(-1, keepdim=True), margins)[..., first - 1 : last]
        found.append(Selection(shown, margins if rows is None else margins.masked_fill(~rows, torch.inf)))

    def watched_top_k(logits: Tensor, visible: Tensor | None, k: int) -> Tensor:
        note(logits, visible, k, k)
        return top_k(logits, visible, k)

    def watched_by_key(logits: Tensor, visible: Tensor | None, below: Tensor) -> Tensor:
        note(logits, visible, 1, below.shape[-1])
        return by_key(logits, visible, below)

    def watched_keep_one(dropped: Tensor, logits: Tensor, visible: Tensor | None) -> Tensor:
        kept = ~dropped if visible is None else visible & ~dropped
        note(logits, visible, 1, 1, ~kept.any(-1, keepdim=True))
        with mock.patch.object(regularisers, "top_k", top_k):
            return keep_one(dropped, logits, visible)

    with (
        mock.patch.object(regularisers, "top_k", watched_top_k),
        mock.patch.object(regularisers, "by_key", watched_by_key),
        mock.patch.object(regularisers, "without_emptying", watched_keep_one),
    ):
        yield found


def near_ties(exact: list[Selection], low: list[Selection], floor: float) -> int:
    """How many rows a rounding could decide, where every logit may be wrong by twice what it is in the low precision.

    `floor` is the least error that is reckoned with, relative to the largest logit of the row.
    """
    assert len(exact) == len(low), "another number of selections in the low precision"
    count = 0
    for wide, narrow in zip(exact, low, strict=True):
        known = wide.logits.isfinite()
        if not known.any():
            continue
        error = (wide.logits - narrow.logits)[known].abs().max()
        scale = wide.logits.masked_fill(~known, 0.0).abs().amax(-1, keepdim=True)
        # Twice the error, of two logits that move towards each other.
        count += int((wide.margins <= 4 * torch.maximum(error, floor * scale)).any(-1).sum())
    return count
