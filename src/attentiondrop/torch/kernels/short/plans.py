"""What the kernels for short rows are told and give: the plan of a call, its tensors, and what the backward needs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

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
    #: Equal parts of the batch: with the sampling "batch", each has a sigma of its own.
    groups: int = 1

    @property
    def has_band(self) -> bool:
        """Whether a causal mask truncates the blur of some keys, whose logits are computed first."""
        return self.is_causal and self.radius > 0


def written(plan: Plan) -> str:
    """A plan in one string: operators and tables take that faster than a dozen values.

    An f-string for each number, and not `str`: it makes a compiler look up a number that it had left open.
    """
    return ";".join([f"{field}" for field in plan])


@functools.lru_cache(maxsize=1024)
def read(text: str) -> Plan:
    """The plan that `written` made a string of."""
    kinds: tuple[Callable[[str], Any], ...]
    kinds = (
        str, int, _truth, _truth, int, _truth, int, float,
        _truth, _truth, int, _truth, int, float, int, str, float, float, float, int,
    )  # fmt: skip
    fields: list[Any] = [kind(field) for kind, field in zip(kinds, text.split(";"), strict=True)]
    return Plan(*fields)


def _truth(text: str) -> bool:
    return text == "True"


def empty_results(q: Tensor, k: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """What the forward gives, without values: the output and the notes.

    Notes are what the backward needs, as 32-bit words (`NotePlaces`). They are one tensor, because each one takes time
    to make.
    """
    batch, heads, rows, _ = q.shape
    places = places_of(plan, batch * heads * rows, batch * heads, rows, k.shape[2])
    return q.new_empty_strided(q.shape, output_strides(q.shape)), q.new_empty(places.end, dtype=torch.int32)


def output_strides(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """In memory as [B, N, H, E], as SDPA's output: joining the heads needs no copy."""
    _, heads, rows, size = shape
    return rows * heads * size, size, heads * size, 1


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

    def offsets(self) -> tuple[int, int, int, int]:
        """Where parts begin, in bytes and in the order of the kernels' arguments. (The first one begins at 0.)"""
        return 4 * self.dropped, 4 * self.kept, 4 * self.share, 4 * self.band


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
