# mypy: ignore-errors
"""Candidates for the largest logits of a row: for every slot of a tile the DEPTH largest seen there, in order.

They are kept by an insertion network without reductions, and popped, the largest of a row first.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def insert(s, t0, t1, t2, t3, DEPTH: tl.constexpr):
    """Each slot's DEPTH largest after one more logit, in order."""
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
def without(popped, a0, a1, a2, a3, DEPTH: tl.constexpr):
    """The candidates without the largest of some slots."""
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
    """Take each row's largest candidate away, and find the next."""
    a0, a1, a2, a3 = without(a0 == place[:, None], a0, a1, a2, a3, DEPTH)
    return a0, a1, a2, a3, tl.max(a0, 1)


@triton.jit
def coded(s, start, slots, BN: tl.constexpr, CODE_BITS: tl.constexpr, WHOLE: tl.constexpr, EDGE: tl.constexpr):
    """The logit with its key, or the number of its tile, in its lowest bits; a hidden one becomes finite.

    (-inf with other bits set would be no number.)
    """
    if EDGE:
        s = tl.maximum(s, -3.0e38)
    code = start + slots[None, :] if WHOLE else start // BN
    bits = s.to(tl.int32, bitcast=True)
    return ((bits & -(1 << CODE_BITS)) | code).to(tl.float32, bitcast=True)


@triton.jit
def pop_key(a0, a1, a2, a3, slots, BN: tl.constexpr, CODE_BITS: tl.constexpr, WHOLE: tl.constexpr, DEPTH: tl.constexpr):
    """Each row's largest candidate and its key, -1 if that is hidden, and the candidates without it."""
    place = tl.max(a0, 1)
    key = place.to(tl.int32, bitcast=True) & ((1 << CODE_BITS) - 1)
    popped = a0 == place[:, None]
    if not WHOLE:
        # Two tiles apart, equal logits differ by their code; within a tile they may not.
        slot = tl.min(tl.where(popped, slots[None, :], BN), 1)
        popped = slots[None, :] == slot[:, None]
        key = key * BN + slot
    a0, a1, a2, a3 = without(popped, a0, a1, a2, a3, DEPTH)
    return a0, a1, a2, a3, place, tl.where(place > -2.9e38, key, -1)
