"""What the kernels for short rows are told and give: the plan of a call, its tensors, and what the backward needs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .bit_map import bytes_of


class Plan(NamedTuple):
    """What a call does beside plain attention. It is the same for all calls of a spec on tensors of one shape."""

    #: As in `Variant`.
    drop: str = ""
    top: int = 0
    hide: bool = False
    is_causal: bool = False
    radius: int = 0
    renormalize: bool = False
    #: The stream of the draws, and the rate.
    stream: int = 0
    rate: float = 0.0
    #: As in `Variant`; with `shares` or `by_column`, this many keys are dropped together.
    by_column: bool = False
    shares: bool = False
    span: int = 1
    dropout: bool = False
    dropout_stream: int = 0
    dropout_rate: float = 0.0
    #: The stream of the blur, and its sigmas.
    blur_stream: int = 0
    sampling: str = "batch"
    sigma_min: float = 0.0
    sigma_max: float = 0.0
    scale: float = 1.0

    @property
    def has_band(self) -> bool:
        """Whether a causal mask truncates the blur of some keys, whose logits are computed first."""
        return self.is_causal and self.radius > 0


class Extras(NamedTuple):
    """The tensors of a call beside queries, keys and values.

    The seed of the draws; factors on the rates and on the sigmas; and which keys are visible [B or 1, Hk or 1, 1, M].
    """

    seed: Tensor | None
    gate: Tensor | None
    dropout_gate: Tensor | None
    blur_gate: Tensor | None
    visible: Tensor | None


class Results(NamedTuple):
    """What the forward gives.

    `notes` is what the backward needs, as 32-bit words (`NotePlaces`). It is one tensor, because each one takes time to
    make.
    """

    output: Tensor
    notes: Tensor


def empty_results(q: Tensor, k: Tensor, plan: Plan) -> Results:
    """The results without values."""
    batch, heads, rows, _ = q.shape
    return results_of(q, places_of(plan, batch * heads * rows, batch * heads, rows, k.shape[2]).end)


def results_of(q: Tensor, words: int) -> Results:
    """The results without values, with so many words of notes."""
    batch, heads, rows, size = q.shape
    # In memory as [B, N, H, E], as SDPA's output: joining the heads needs no copy.
    output = q.new_empty_strided((batch, heads, rows, size), (rows * heads * size, size, heads * size, 1))
    return Results(output, q.new_empty(words, dtype=torch.int32))


class NotePlaces(NamedTuple):
    """Where in `notes` each part begins, counted in words.

    The log-sum-exp of each row in units of log2 comes first (a float). Then, where they are needed: the key that an
    emptied row keeps, or -1; one over the share of the weights that a row keeps; the logits of the band [B, H, r, N];
    and the bit map of what hard masking dropped (see `bit_map`).
    """

    kept: int
    share: int
    band: int
    dropped: int
    end: int

    def pointers(self, notes: Tensor) -> tuple[int, int, int, int, int]:
        """The addresses, in the order of the kernels' arguments."""
        start = notes.data_ptr()
        return start, start + 4 * self.dropped, start + 4 * self.kept, start + 4 * self.share, start + 4 * self.band


def places_of(plan: Plan, lines: int, heads: int, rows: int, keys: int) -> NotePlaces:
    """The places for so many rows of all heads (`lines`), heads of all samples, rows of a head, and keys."""
    kept = lines
    share = kept + (lines if plan.hide else 0)
    band = share + (lines if plan.shares else 0)
    dropped = band + (plan.radius * lines if plan.has_band else 0)
    if plan.drop != "largest":
        return NotePlaces(kept, share, band, dropped, dropped)
    dropped = -(-dropped // 4) * 4  # the kernels copy pieces of 16 bytes
    return NotePlaces(kept, share, band, dropped, dropped + bytes_of(heads, rows, keys) // 4)
