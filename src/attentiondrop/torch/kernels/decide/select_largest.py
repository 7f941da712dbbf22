# mypy: ignore-errors
"""The first sweep of hard masking, for rows of any length: find the k-th largest logit of each row and the next one.

Each slot (row and column in a tile) keeps the DEPTH largest logits that it saw (`candidates`). At the end, the k
largest of a row are popped from these candidates. The result is doubtful if a slot holds DEPTH of the k largest,
because it may have lost a further one, and if logits are equal, because they are popped together. Doubtful rows are
counted again, exactly.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..shared.local import first_of, near_of, places_of
from ..shared.logits import SIZES, bounds, in_64_bits, load_tile, load_words, visible_logits
from .candidates import insert, insert_two, pop


@triton.jit
def _order(s):
    """An unsigned integer that orders like the float, 0 for -inf."""
    bits = s.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(s > float("-inf"), ordered.to(tl.uint32, bitcast=True) ^ 0x80000000, 0)


@triton.jit
def _unorder(key):
    """The float of an ordering integer."""
    ordered = (key ^ 0x80000000).to(tl.int32, bitcast=True)
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    return tl.where(key > 0, bits.to(tl.float32, bitcast=True), float("-inf"))


@triton.jit(do_not_specialize=[*SIZES, "top"])
def select_kernel(
    Q,
    K,
    VISIBLE,
    BIAS,
    WORDS,
    FACTORS,
    LOW,
    HIGH,
    CUT,
    TIED,
    q_b,
    q_h,
    q_n,
    k_b,
    k_h,
    k_m,
    visible_b,
    visible_h,
    visible_n,
    visible_m,
    bias_b,
    bias_h,
    bias_n,
    bias_m,
    scale,
    H,
    GROUP,
    N,
    M,
    LINES,
    STATES,
    LISTS,
    LENGTHS,
    PATTERNS,
    states_b,
    states_h,
    lengths_b,
    lengths_h,
    left,
    right,
    top,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    DEPTH: tl.constexpr,
    TOP: tl.constexpr,
    RAW: tl.constexpr,
    BISECT: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_VISIBLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    FAR: tl.constexpr,
    NOISE: tl.constexpr,
    WINDOW: tl.constexpr,
    SIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Program: one tile of rows of one head. Writes `LOW`, `HIGH`, `CUT` (see `is_dropped`), `TIED`."""
    tiles = tl.cdiv(N, BM)
    head = (tl.program_id(0) // tiles).to(tl.int64)
    b = head // H
    h = head % H
    rows = (tl.program_id(0) % tiles) * BM + tl.arange(0, BM)
    d = tl.arange(0, BLOCK_D)
    inside = rows < N
    q = load_tile(Q + b * q_b + h * q_h, rows[:, None], q_n, d[None, :], N, D, BLOCK_D, True)
    K += b * k_b + (h // GROUP) * k_h
    VISIBLE += b * visible_b + h * visible_h
    BIAS += b * bias_b + h * bias_h
    if FAR:
        visible_n, visible_m, bias_n, bias_m = in_64_bits(visible_n, visible_m, bias_n, bias_m)
    line_words = load_words(WORDS, head * N + rows, inside) if NOISE else tl.zeros([BM], tl.uint32)
    COLUMN_WORDS = WORDS + LINES
    sigma = tl.load(FACTORS)
    # RAW: logits are products times the scale, so products are ranked, and only the results are scaled.
    factor = 1.0 if RAW else scale
    first_row = (tl.program_id(0) % tiles) * BM
    begin = 0
    end = M
    LOCAL: tl.constexpr = WINDOW or SIDE > 0
    near = near_of(STATES, PATTERNS, b, h, states_b, states_h, left, right)
    LIST = LISTS
    if SIDE > 0:
        LIST += b * states_b + h * states_h + (first_row // SIDE) * tl.cdiv(M, SIDE)
    if LOCAL:
        LENGTH = LENGTHS + b * lengths_b + h * lengths_h
        begin, end = places_of(first_row, left, right, M, LENGTH, BM, BN, WINDOW, SIDE)
    if CAUSAL:
        end = tl.minimum(M, first_row + BM)

    if BISECT:
        # Many candidates: find the k-th largest bit by bit, with one sweep for each bit.
        answer = tl.zeros([BM], tl.uint32)
        bit = tl.full([BM], 0x80000000, tl.uint32)
        for _ in range(32):
            trial = answer | bit
            bit = bit >> 1
            reached = tl.zeros([BM], tl.int32)
            for start in tl.range(begin, end, BN, num_stages=1):
                s = _tile(
                    q, K, k_m, start, rows, d, line_words, COLUMN_WORDS, VISIBLE, visible_n, visible_m, BIAS, bias_n,
                    bias_m, factor, sigma, N, M, D, BLOCK_D, BN, HAS_VISIBLE, HAS_BIAS, NOISE, CAUSAL, True, near,
                    first_row, LIST, WINDOW, SIDE,
                )  # fmt: skip
                reached += tl.sum((_order(s) >= trial[:, None]).to(tl.int32), 1)
            answer = tl.where(reached >= top, trial, answer)
        place = _unorder(answer)
        below = place
        doubtful = place > float("-inf")
    else:
        t0 = tl.full([BM, BN], float("-inf"), tl.float32)
        t1 = t0
        t2 = t0
        t3 = t0
        # Two tiles at once, where shared memory has room for more keys on every device.
        STEP: tl.constexpr = 2 * BN if BLOCK_D <= 64 else BN
        full = M // STEP * STEP
        if LOCAL:
            full = begin
        if CAUSAL:
            full = tl.minimum(full, (first_row + 1) // STEP * STEP)
        for start in tl.range(begin, full, STEP, num_stages=STAGES):
            s = _tile(
                q, K, k_m, start, rows, d, line_words, COLUMN_WORDS, VISIBLE, visible_n, visible_m, BIAS, bias_n,
                bias_m, factor, sigma, N, M, D, BLOCK_D, BN, HAS_VISIBLE, HAS_BIAS, NOISE, False, False, near,
                first_row, LIST, False, 0,
            )  # fmt: skip
            if STEP > BN:
                next_s = _tile(
                    q, K, k_m, start + BN, rows, d, line_words, COLUMN_WORDS, VISIBLE, visible_n, visible_m, BIAS,
                    bias_n, bias_m, factor, sigma, N, M, D, BLOCK_D, BN, HAS_VISIBLE, HAS_BIAS, NOISE, False, False,
                    near, first_row, LIST, False, 0,
                )  # fmt: skip
                t0, t1, t2, t3 = insert_two(s, next_s, t0, t1, t2, t3, DEPTH)
            else:
                t0, t1, t2, t3 = insert(s, t0, t1, t2, t3, DEPTH)
        for start in tl.range(full, end, BN, num_stages=STAGES if LOCAL else 1):
            s = _tile(
                q, K, k_m, start, rows, d, line_words, COLUMN_WORDS, VISIBLE, visible_n, visible_m, BIAS, bias_n,
                bias_m, factor, sigma, N, M, D, BLOCK_D, BN, HAS_VISIBLE, HAS_BIAS, NOISE, CAUSAL, True, near,
                first_row, LIST, WINDOW, SIDE,
            )  # fmt: skip
            t0, t1, t2, t3 = insert(s, t0, t1, t2, t3, DEPTH)
        a0 = t0
        a1 = t1
        a2 = t2
        a3 = t3
        place = tl.max(a0, 1)
        if TOP > 0:
            for _ in tl.static_range(TOP - 1):
                a0, a1, a2, a3, place = pop(a0, a1, a2, a3, place, DEPTH)
        else:
            for _ in range(top - 1):
                a0, a1, a2, a3, place = pop(a0, a1, a2, a3, place, DEPTH)
        below = tl.max(tl.where(a0 == place[:, None], a1, a0), 1)
        # One reduction for two counts: the candidates that are at least `place`, and the slots whose deepest candidate
        # is. (If `place` is -inf, past the last visible logit, only visible candidates count.)
        floor = tl.maximum(place, -3.0e38)[:, None]
        deepest = t3 if DEPTH == 4 else (t2 if DEPTH == 3 else (t1 if DEPTH == 2 else t0))
        tally = (t0 >= floor).to(tl.int32) + (deepest >= floor).to(tl.int32) * 65536
        if DEPTH > 1:
            tally += (t1 >= floor).to(tl.int32)
        if DEPTH > 2:
            tally += (t2 >= floor).to(tl.int32)
        if DEPTH > 3:
            tally += (t3 >= floor).to(tl.int32)
        tally = tl.sum(tally, 1)
        doubtful = tally % 65536 > top
        if tl.cdiv(end - begin, BN) > DEPTH:
            # If the deepest logit of a slot is among the k largest, a logit that the slot lost may be, too.
            doubtful = doubtful | (tally >= 65536)
        # Rows past the end have only ties, and are not read.
        doubtful = doubtful & inside

    high = place
    cut = tl.full([BM], 2147483647, tl.int32)
    if tl.max(doubtful.to(tl.int32)) > 0:
        # Move `place` up through the distinct values until fewer than k logits lie above it. Then count how many of the
        # logits equal to `place` belong to the k largest.
        moving = doubtful
        above = tl.zeros([BM], tl.int32)
        next_below = below
        next_above = tl.full([BM], float("inf"), tl.float32)
        go_on = tl.max(moving.to(tl.int32))
        while go_on > 0:
            count = tl.zeros([BM], tl.int32)
            lower = tl.full([BM], float("-inf"), tl.float32)
            upper = tl.full([BM], float("inf"), tl.float32)
            for start in tl.range(begin, end, BN, num_stages=1):
                s = _tile(
                    q, K, k_m, start, rows, d, line_words, COLUMN_WORDS, VISIBLE, visible_n, visible_m, BIAS, bias_n,
                    bias_m, factor, sigma, N, M, D, BLOCK_D, BN, HAS_VISIBLE, HAS_BIAS, NOISE, CAUSAL, True, near,
                    first_row, LIST, WINDOW, SIDE,
                )  # fmt: skip
                greater = s > place[:, None]
                count += tl.sum(greater.to(tl.int32), 1)
                upper = tl.minimum(upper, tl.min(tl.where(greater, s, float("inf")), 1))
                lower = tl.maximum(lower, tl.max(tl.where(s < place[:, None], s, float("-inf")), 1))
            moving = doubtful & (count >= top)
            above = count
            next_below = lower
            next_above = upper
            place = tl.where(moving, upper, place)
            go_on = tl.max(moving.to(tl.int32))
        room = top - above
        equal = tl.zeros([BM], tl.int32)
        last = tl.full([BM], -1, tl.int32)
        for start in tl.range(begin, end, BN, num_stages=1):
            s = _tile(
                q, K, k_m, start, rows, d, line_words, COLUMN_WORDS, VISIBLE, visible_n, visible_m, BIAS, bias_n,
                bias_m, factor, sigma, N, M, D, BLOCK_D, BN, HAS_VISIBLE, HAS_BIAS, NOISE, CAUSAL, True, near,
                first_row, LIST, WINDOW, SIDE,
            )  # fmt: skip
            level = (s == place[:, None]) & (s > float("-inf"))
            order = equal[:, None] + tl.cumsum(level.to(tl.int32), 1)
            columns = first_of(start, LIST, SIDE) + tl.arange(0, BN)
            last = tl.maximum(last, tl.max(tl.where(level & (order <= room[:, None]), columns[None, :], -1), 1))
            equal += tl.sum(level.to(tl.int32), 1)
        tied = doubtful & (equal > room) & inside
        below = tl.where(doubtful, next_below, below)
        between = 0.5 * place + 0.5 * next_above
        between = tl.where(between > place, between, next_above)
        high = tl.where(tied, between, place)
        cut = tl.where(tied, last, cut)
        if tl.max(tied.to(tl.int32)) > 0:
            # Several programs may write here: all write the same value.
            tl.store(TIED + head, 1)

    low, high = bounds(place, below, high, scale if RAW else 1.0)
    out = head * N + rows
    tl.store(LOW + out, low, mask=inside)
    tl.store(HIGH + out, high, mask=inside)
    tl.store(CUT + out, cut, mask=inside)


@triton.jit
def _tile(
    q,
    K,
    k_m,
    start,
    rows,
    d,
    line_words,
    COLUMN_WORDS,
    VISIBLE,
    visible_n,
    visible_m,
    BIAS,
    bias_n,
    bias_m,
    scale,
    sigma,
    N,
    M,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BN: tl.constexpr,
    HAS_VISIBLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NOISE: tl.constexpr,
    DIAGONAL: tl.constexpr,
    EDGE: tl.constexpr,
    near,
    first_row,
    LIST,
    WINDOW: tl.constexpr,
    SIDE: tl.constexpr,
):
    """The logits of `rows` against the keys from place `start` on."""
    start = first_of(start, LIST, SIDE)
    columns = start + tl.arange(0, BN)
    known = columns < M
    k = load_tile(K, columns[None, :], k_m, d[:, None], M, D, BLOCK_D, EDGE)
    column_words = load_words(COLUMN_WORDS, columns, known) if NOISE else tl.zeros([BN], tl.uint32)
    return visible_logits(
        tl.dot(q, k, input_precision="ieee"), rows[:, None], columns[None, :], line_words[:, None],
        column_words[None, :], VISIBLE, visible_n, visible_m, BIAS, bias_n, bias_m, scale, sigma, N, M,
        HAS_VISIBLE, HAS_BIAS, NOISE, DIAGONAL, EDGE, near, (first_row, start), WINDOW, SIDE,
    )  # fmt: skip
