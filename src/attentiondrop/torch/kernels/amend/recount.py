# mypy: ignore-errors
"""Hard masking's exact selection, for the few rows that are doubtful in `pick`.

`pick` stores a floor for each row: the k + 1 largest products are not below it. This kernel goes through the tiles and
puts the products that are not below the floor on a short list for each row: the largest first, and of equal ones the
first key.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..shared.logits import SIZES, bounds, dropped_key, load_tile, load_words, tile_rows
from .pick import products, store_lost

#: Length of a row's list: a power of two, more than any k that `pick` takes.
LIST = tl.constexpr(16)


@triton.jit(do_not_specialize=[*SIZES, "PARTS"])
def recount_kernel(
    Q,
    K,
    WORDS,
    LIMITS,
    LOW,
    HIGH,
    CUT,
    LOST,
    ROWS,
    COUNTS,
    q_b,
    q_h,
    q_n,
    k_b,
    k_h,
    k_m,
    scale,
    H,
    GROUP,
    N,
    M,
    LINES,
    PARTS,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    TOP: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Program: one of PARTS shares of the listed rows of one head. Writes what `pick_kernel` writes.

    `pick_kernel` has stored the floor in `LOW`.
    """
    head = (tl.program_id(0) // PARTS).to(tl.int64)
    count = tl.load(COUNTS + head)
    b = head // H
    h = head % H
    Q += b * q_b + h * q_h
    K += b * k_b + (h // GROUP) * k_h
    WORDS += LINES + M  # slot 1, that of dropped logits
    limit = tl.load(LIMITS + 1).to(tl.uint32, bitcast=True)
    for first in range(tl.program_id(0) % PARTS * BM, count, PARTS * BM):
        rows = tile_rows(first, ROWS + head * N, COUNTS + head, N, BM, True)
        d = tl.arange(0, BLOCK_D)
        inside = rows < N
        lines = head * N + rows
        q = load_tile(Q, rows[:, None], q_n, d[None, :], N, D, BLOCK_D, True)
        words = load_words(WORDS, lines, inside)
        end = M
        if CAUSAL:
            end = tl.minimum(M, tl.max(tl.where(inside, rows, 0), 0) + 1)

        # Places past the end of the list get a floor of inf, so their lists stay empty.
        floor = tl.load(LOW + lines, mask=inside, other=float("inf"))
        places = tl.arange(0, LIST)[None, :]
        values = tl.full([BM, LIST], float("-inf"), tl.float32)
        keys = tl.zeros([BM, LIST], tl.int32) + places
        least = tl.full([BM], float("-inf"), tl.float32)
        for start in tl.range(0, end, BN, num_stages=1):
            s = products(q, K, k_m, start, rows, d, M, D, BLOCK_D, BN, CAUSAL, True, float("-inf"))
            columns = (start + tl.arange(0, BN))[None, :]
            largest = tl.max(s, 1)
            wanted = (largest >= floor) & (largest > least)
            while tl.max(wanted.to(tl.int32), 0) > 0:
                key = tl.min(tl.where(s == largest[:, None], columns, 2147483647), 1)
                # It replaces the smallest entry of the list; among equal ones, the last.
                leaving = tl.max(tl.where(values == least[:, None], keys, -1), 1)
                here = wanted[:, None] & (values == least[:, None]) & (keys == leaving[:, None])
                values = tl.where(here, largest[:, None], values)
                keys = tl.where(here, key[:, None], keys)
                least = tl.min(values, 1)
                s = tl.where(columns == key[:, None], float("-inf"), s)
                largest = tl.max(s, 1)
                wanted = wanted & (largest >= floor) & (largest > least)

        place = tl.full([BM], float("inf"), tl.float32)
        above = place
        key = tl.full([BM], -1, tl.int32)
        rest = values
        for _ in range(TOP):
            best = tl.max(rest, 1)
            above = tl.where(best < place, place, above)
            place = best
            key = tl.min(tl.where(rest == best[:, None], keys, 2147483647), 1)
            rest = tl.where(keys == key[:, None], float("-inf"), rest)
        key = tl.where(place > float("-inf"), key, -1)
        chosen = (values > place[:, None]) | ((values == place[:, None]) & (keys <= key[:, None]))
        lost = dropped_key(tl.where(chosen, keys, -1), words[:, None], WORDS + LINES, limit)
        store_lost(LOST + lines * TOP, inside, keys, lost >= 0, TOP, LIST)

        # Ties across the k-th place: `cut` is the last key among the k largest, `high` lies above the ties.
        tied = (tl.max(rest, 1) == place) & (key >= 0)
        below = tl.max(tl.where(rest < place[:, None], rest, float("-inf")), 1)
        unknown = tied & (below == float("-inf"))
        if tl.max(unknown.to(tl.int32), 0) > 0:
            # The rest of the list has only ties: find the largest product below them.
            for start in tl.range(0, end, BN, num_stages=1):
                s = products(q, K, k_m, start, rows, d, M, D, BLOCK_D, BN, CAUSAL, True, float("-inf"))
                next_one = tl.max(tl.where(s < place[:, None], s, float("-inf")), 1)
                below = tl.where(unknown, tl.maximum(below, next_one), below)
        above = tl.minimum(above, 1.0e36)
        between = 0.5 * place + 0.5 * above
        high = tl.where(tied, tl.where(between > place, between, above), place)
        low, high = bounds(place, below, high, scale)
        tl.store(LOW + lines, low, mask=inside)
        tl.store(HIGH + lines, high, mask=inside)
        tl.store(CUT + lines, tl.where(tied, key, 2147483647), mask=inside)
