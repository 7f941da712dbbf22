# mypy: ignore-errors
"""Windows and blocks of keys: which tiles a kernel visits, and which logits of a tile are visible.

WINDOW: row i sees the keys from `i - left` to `i + right`. SIDE > 0: rows and keys are cut into blocks of SIDE, and a
table holds the state of each pair of blocks: 0 for hidden, 1 for visible, 2 + n if the n-th pattern says what is
visible inside. Tiles never cross a block. A sweep goes through `places`: with blocks, a list names the blocks to visit,
and places count the rows or keys of these blocks only; without blocks, places are rows or keys themselves.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def near_of(STATES, PATTERNS, b, h, states_b, states_h, left, right):
    """What the functions below need of one head, in one tuple."""
    return left, right, STATES + b * states_b + h * states_h, PATTERNS


@triton.jit
def first_of(place, LIST, SIDE: tl.constexpr):
    """The row or key at a place; `LIST` is that of the block on the other side."""
    first = place
    if SIDE > 0:
        first = tl.load(LIST + place // SIDE) * SIDE + place % SIDE
    return first


@triton.jit
def places_of(
    first, before, after, length, LENGTH, TILE: tl.constexpr, STEP: tl.constexpr, WINDOW: tl.constexpr,
    SIDE: tl.constexpr,
):  # fmt: skip
    """The first and the last place (exclusive) that a tile of TILE rows or keys from `first` on has to visit.

    Of `length` places in all, in steps of STEP. It sees those from `before` before to `after` behind itself.
    """
    begin = first * 0
    end = length
    if SIDE > 0:
        end = tl.load(LENGTH + first // SIDE) * SIDE
    elif WINDOW:
        begin = tl.maximum(first - before, 0) // STEP * STEP
        end = tl.minimum(length, first + TILE + after)
    return begin, end


@triton.jit
def in_block(near, corner, rows, columns, inside, M, SIDE: tl.constexpr):
    """Whether each pair of row and key in a tile is visible by the table of blocks."""
    state = tl.load(near[2] + (corner[0] // SIDE) * tl.cdiv(M, SIDE) + corner[1] // SIDE)
    pattern = near[3] + tl.maximum(state - 2, 0).to(tl.int64) * (SIDE * SIDE)
    # (As a tensor of the rows: the interpreter takes no scalar in a mask.)
    states = tl.zeros_like(rows) + state
    shown = tl.load(pattern + (rows % SIDE) * SIDE + columns % SIDE, mask=inside & (states >= 2), other=1)
    return (shown != 0) & (states > 0)
