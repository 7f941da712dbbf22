# mypy: ignore-errors
"""The tables of words, limits and factors that every tile of a call reads."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ...call.decisions import Decisions
from ..shared.compiler_options import OPTIONS
from ..shared.words import words_kernel


class Tables(NamedTuple):
    """For each slot: odd words of all rows and keys, the limit they are compared with, the factor on kept entries."""

    words: Tensor
    limits: Tensor
    factors: Tensor
    #: How many words a slot has, and how many lie between the key words of two heads (0: all heads share theirs).
    slot_words: int
    head_words: int


def make_tables(q: Tensor, columns: int, call: Decisions) -> Tables:
    """Fill the tables."""
    lines = q.shape[0] * q.shape[1] * q.shape[2]
    # Slots that decide once for each (sample, head, key): there, heads have key words of their own.
    vectors = 0b10 * (call.drop == "column") + 0b100 * call.dropout.by_column
    copies = q.shape[0] * q.shape[1] if vectors else 1
    slot_words = lines + copies * columns
    words = torch.empty(4, slot_words, dtype=torch.int32, device=q.device)
    limits = torch.empty(4, dtype=torch.int32, device=q.device)
    factors = torch.empty(4, dtype=torch.float32, device=q.device)
    words_kernel[(triton.cdiv(slot_words, 1024), 4)](
        call.seed,
        call.seed if call.gates is None else call.gates,
        words,
        limits,
        factors,
        *call.streams,
        *(float(rate) for rate in call.rates),
        lines,
        columns,
        slot_words,
        call.dropout.span,
        VECTORS=vectors,
        HAS_GATES=call.gates is not None,
        BLOCK=1024,
        **OPTIONS,
    )
    return Tables(words, limits, factors, slot_words, columns if vectors else 0)
