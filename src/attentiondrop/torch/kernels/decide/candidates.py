# mypy: ignore-errors
"""Candidates for the largest logits of a row. A slot is a position in a tile; each slot keeps its DEPTH largest logits.

An insertion network without reductions adds logits. `pop` removes the candidates of a row, the largest first.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def insert(s, t0, t1, t2, t3, DEPTH: tl.constexpr):
    """Add one logit to each slot; return the DEPTH largest of each slot, in order."""
    if DEPTH > 1:
        rest = tl.minimum(t0, s)
    t0 = tl.maximum(t0, s)
    if DEPTH > 2:
        less = tl.minimum(t1, rest)
    if DEPTH > 1:
        t1 = tl.maximum(t1, rest)
    if DEPTH > 3:
        least = tl.minimum(t2, less)
    if DEPTH > 2:
        t2 = tl.maximum(t2, less)
    if DEPTH > 3:
        t3 = tl.maximum(t3, least)
    return t0, t1, t2, t3


@triton.jit
def insert_two(x, y, t0, t1, t2, t3, DEPTH: tl.constexpr):
    """Add two logits to each slot. With four places this takes 12 minima and maxima, two insertions take 14."""
    if DEPTH == 4:
        # The places go down and the pair goes up, so the larger of each two are the four largest. They go down and up
        # then, and two rounds of comparisons sort such numbers (Batcher's bitonic sorter).
        t2 = tl.maximum(t2, tl.minimum(x, y))
        t3 = tl.maximum(t3, tl.maximum(x, y))
        a0 = tl.maximum(t0, t2)
        a1 = tl.maximum(t1, t3)
        b0 = tl.minimum(t0, t2)
        b1 = tl.minimum(t1, t3)
        t0 = tl.maximum(a0, a1)
        t1 = tl.minimum(a0, a1)
        t2 = tl.maximum(b0, b1)
        t3 = tl.minimum(b0, b1)
    else:
        t0, t1, t2, t3 = insert(x, t0, t1, t2, t3, DEPTH)
        t0, t1, t2, t3 = insert(y, t0, t1, t2, t3, DEPTH)
    return t0, t1, t2, t3


@triton.jit
def without(popped, a0, a1, a2, a3, DEPTH: tl.constexpr):
    """Remove the largest candidate of the slots in `popped`."""
    a0 = tl.where(popped, a1, a0)
    if DEPTH > 1:
        a1 = tl.where(popped, a2, a1)
    if DEPTH > 2:
        a2 = tl.where(popped, a3, a2)
    if DEPTH > 3:
        a3 = tl.where(popped, float("-inf"), a3)
    return a0, a1, a2, a3


@triton.jit
def pop(a0, a1, a2, a3, place, DEPTH: tl.constexpr):
    """Remove each row's largest candidate `place`, and find the next one."""
    a0, a1, a2, a3 = without(a0 == place[:, None], a0, a1, a2, a3, DEPTH)
    return a0, a1, a2, a3, tl.max(a0, 1)
