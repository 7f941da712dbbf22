# mypy: ignore-errors
"""The forward: flash attention that perturbs logits and weights tile by tile."""

from __future__ import annotations

import triton
import triton.language as tl

from ..shared.decided import SEEN, filled, kept
from ..shared.hashing import joined
from ..shared.local import first_of, near_of, places_of
from ..shared.logits import (
    SIZES,
    accumulate,
    along_columns,
    along_rows,
    causal_range,
    in_64_bits,
    is_dropped,
    is_others,
    kept_weights,
    load_key_words,
    load_rates,
    load_row_words,
    load_tile,
    tables_of,
    tile_rows,
    visible_logits,
    weight_growth,
)
from ..shared.powers import power_of_two


@triton.jit(do_not_specialize=[*SIZES])
def forward_kernel(
    Q,
    K,
    V,
    OUT,
    LSE,
    VISIBLE,
    BIAS,
    WORDS,
    LIMITS,
    FACTORS,
    slot_words,
    head_words,
    LOW,
    HIGH,
    CUT,
    KEEP,
    TIED,
    GROWTH,
    ROWS,
    COUNTS,
    q_b,
    q_h,
    q_n,
    k_b,
    k_h,
    k_m,
    v_b,
    v_h,
    v_m,
    out_b,
    out_h,
    out_n,
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
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_VISIBLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    FAR: tl.constexpr,
    NOISE: tl.constexpr,
    DROP: tl.constexpr,
    RANKED: tl.constexpr,
    TIES: tl.constexpr,
    DROPOUT_A: tl.constexpr,
    DROPOUT_B: tl.constexpr,
    LISTED: tl.constexpr,
    RAW: tl.constexpr,
    LAST: tl.constexpr,
    WINDOW: tl.constexpr,
    SIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Program: one tile of rows of one head. DROP is "", "zero" (a dropped logit becomes 0) or "hide" (-inf).

    DROPOUT_A is "", "scale" (a kept weight grows by a factor) or "share" (the weights of a row are divided by the share
    of their sum that is left). LISTED: compute only the first `COUNTS[head]` rows in the list `ROWS[head]`.
    RAW: logits are products times a positive scale, and nothing else is done to them before the softmax.
    LAST: the keys of a tile at the end, where the keys may not fill a whole one.
    """
    tiles = tl.cdiv(N, BM)
    head = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    if CAUSAL and not LISTED:
        # The last rows have the most keys, so they start first.
        tile = tiles - 1 - tile
    if is_others(TIED + head, COUNTS + head, tile * BM, RANKED, TIES, LISTED):
        return
    b = head // H
    h = head % H
    rows = tile_rows(tile * BM, ROWS + head * N, COUNTS + head, N, BM, LISTED)
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_E)
    inside = rows < N
    lines = head * N + rows
    q = load_tile(Q + b * q_b + h * q_h, rows[:, None], q_n, d[None, :], N, D, BLOCK_D, True)
    K += b * k_b + (h // GROUP) * k_h
    V += b * v_b + (h // GROUP) * v_h
    VISIBLE += b * visible_b + h * visible_h
    BIAS += b * bias_b + h * bias_h
    if FAR:
        visible_n, visible_m, bias_n, bias_m = in_64_bits(visible_n, visible_m, bias_n, bias_m)
    low = tl.zeros([BM], tl.float32)
    high = low
    cut = tl.zeros([BM], tl.int32)
    if RANKED:
        low = tl.load(LOW + lines, mask=inside, other=0.0)
    if TIES:
        high = tl.load(HIGH + lines, mask=inside, other=0.0)
        cut = tl.load(CUT + lines, mask=inside, other=0)

    acc = tl.zeros([BM, BLOCK_E], tl.float32)
    total = tl.zeros([BM], tl.float32)
    largest = tl.full([BM], float("-inf"), tl.float32)
    spared = total
    level = largest
    end = M
    full = M // BN * BN
    begin = 0
    LOCAL: tl.constexpr = WINDOW or SIDE > 0
    near = near_of(STATES, PATTERNS, b, h, states_b, states_h, left, right)
    LIST = LISTS
    if SIDE > 0:
        LIST += b * states_b + h * states_h + (tile * BM // SIDE) * tl.cdiv(M, SIDE)
    if LOCAL:
        LENGTH = LENGTHS + b * lengths_b + h * lengths_h
        begin, end = places_of(tile * BM, left, right, M, LENGTH, BM, BN, WINDOW, SIDE)
        full = begin
    if CAUSAL:
        end, full = causal_range(tile * BM, rows, N, M, BM, BN, LISTED)
    rates = load_rates(LIMITS, FACTORS)
    tables = tables_of(WORDS, head, LINES, slot_words, head_words)
    acc, total, largest, spared, level = _sweep(
        begin, full, acc, total, largest, spared, level, q, K, V, k_m, v_m, rows, lines, inside, d, e, VISIBLE,
        visible_n, visible_m, BIAS, bias_n, bias_m, tables, rates, low, high, cut, scale, N, M, LINES, D, E, BLOCK_D,
        BLOCK_E, BM, BN, False, False, HAS_VISIBLE, HAS_BIAS, NOISE, DROP, RANKED, TIES, DROPOUT_A, DROPOUT_B, STAGES,
        near, tile * BM, LIST, False, 0, RAW,
    )  # fmt: skip
    acc, total, largest, spared, level = _sweep(
        full, end, acc, total, largest, spared, level, q, K, V, k_m, v_m, rows, lines, inside, d, e, VISIBLE,
        visible_n, visible_m, BIAS, bias_n, bias_m, tables, rates, low, high, cut, scale, N, M, LINES, D, E, BLOCK_D,
        BLOCK_E, BM, LAST, CAUSAL, True, HAS_VISIBLE, HAS_BIAS, NOISE, DROP, RANKED, TIES, DROPOUT_A, DROPOUT_B,
        STAGES if LOCAL else 1, near, tile * BM, LIST, WINDOW, SIDE, RAW,
    )  # fmt: skip

    BY_SHARE: tl.constexpr = DROPOUT_A == "share"
    # A row that lost its weight keeps none of the logits that were dropped before, unless these were all.
    BEFORE: tl.constexpr = DROP if BY_SHARE else ""
    SCALED: tl.constexpr = "" if BY_SHARE else DROPOUT_A
    if DROP == "hide" or BY_SHARE:
        # A row that lost every visible key keeps its largest one, and so does one that lost all of its weight.
        empty = total == 0.0
        lost = empty
        if BY_SHARE:
            rest = spared * power_of_two(_finite(level) - _finite(largest), Q.dtype.element_ty == tl.float32)
            # (2**-64 is `specs.after_softmax.LEAST_SHARE`. A row that sees no key has lost nothing.)
            lost = rest < total * 5.421010862427522e-20
            if DROP == "hide":
                lost = lost | empty
        keep = tl.full([BM], -1, tl.int32)
        if tl.max((lost & inside).to(tl.int32)) > 0:
            best = tl.full([BM], float("-inf"), tl.float32)
            at = tl.zeros([BM], tl.int32)
            row_words = load_row_words(tables, lines, inside, NOISE, BEFORE, "", False)
            for place in range(begin, end, BN):
                start = first_of(place, LIST, SIDE)
                columns = start + tl.arange(0, BN)
                k = load_tile(K, columns[None, :], k_m, d[:, None], M, D, BLOCK_D, True)
                key_words = load_key_words(tables, 0, columns, columns < M, NOISE, BEFORE, "", False)
                s = visible_logits(
                    tl.dot(q, k, input_precision="ieee"), rows[:, None], columns[None, :], row_words[0][:, None],
                    key_words[0][None, :], VISIBLE, visible_n, visible_m, BIAS, bias_n, bias_m, scale,
                    rates[0], N, M, HAS_VISIBLE, HAS_BIAS, NOISE, CAUSAL, True, near, (tile * BM, start), WINDOW, SIDE,
                )  # fmt: skip
                if BEFORE != "":
                    dropped = is_dropped(
                        s, columns[None, :], row_words[1][:, None], key_words[1][None, :], rates[1], low[:, None],
                        high[:, None], cut[:, None], RANKED, TIES,
                    )  # fmt: skip
                    s = tl.where(dropped & (total > 0.0)[:, None], 0.0 if DROP == "zero" else float("-inf"), s)
                here = tl.max(s, 1)
                first = tl.min(tl.where(s == here[:, None], columns[None, :], 2147483647), 1)
                at = tl.where(here > best, first, at)
                best = tl.maximum(best, here)
            saved = lost & (best > float("-inf"))
            keep = tl.where(saved, at, -1)
            value = tl.load(
                V + at[:, None].to(tl.int64) * v_m + e[None, :], mask=saved[:, None] & (e[None, :] < E), other=0.0
            ).to(tl.float32)
            if SCALED != "" or DROPOUT_B:
                row_words = load_row_words(tables, lines, inside, False, "", SCALED, DROPOUT_B)
                kept_words = load_key_words(tables, 0, at, saved, False, "", SCALED, DROPOUT_B)
                ones = tl.full([BM], 1.0, tl.float32)
                value = value * kept_weights(ones, row_words, kept_words, at, -1, rates, SCALED, DROPOUT_B)[:, None]
            acc = tl.where(saved[:, None], value, acc)
            if BY_SHARE:
                spared = tl.where(saved, 1.0, spared)
                rest = tl.where(saved, 1.0, rest)
            largest = tl.where(saved & empty, best, largest)
            total = tl.where(saved & empty, 1.0, total)
        tl.store(KEEP + lines, keep, mask=inside)

    # A row that sees no key gets zeros and a finite log-sum-exp.
    blind = total == 0.0
    total = tl.where(blind, 1.0, total)
    if RAW:
        largest = largest * scale
    if Q.dtype.element_ty == tl.float32:  # see `call.decisions.empty_lse`
        tl.store(LSE + LINES + lines, tl.div_rn(1.0, total), mask=inside)
    else:
        largest += tl.log2(total)
    tl.store(LSE + lines, tl.where(blind, 0.0, largest), mask=inside)
    divisor = total
    if BY_SHARE:
        # (Nothing is left where no key is seen, and in places without a row.)
        tl.store(GROWTH + lines, tl.div_rn(total, tl.where(rest == 0.0, 1.0, rest)), mask=inside)
        divisor = tl.where(spared == 0.0, 1.0, spared)
    out_place = OUT + b * out_b + h * out_h + rows[:, None].to(tl.int64) * out_n + e[None, :]
    growth = weight_growth(rates, DROPOUT_A, DROPOUT_B)
    if Q.dtype.element_ty == tl.float32:
        out = acc * growth / divisor[:, None]
    else:
        out = acc * tl.div_rn(growth, divisor)[:, None]
    tl.store(out_place, out.to(OUT.dtype.element_ty), mask=inside[:, None] & (e[None, :] < E))


@triton.jit
def _finite(level):
    """A level to subtract: 0 for -inf, since -inf - -inf is NaN."""
    return tl.where(level == float("-inf"), 0.0, level)


@triton.jit
def _sweep(
    begin,
    end,
    acc,
    total,
    largest,
    spared,
    level,
    q,
    K,
    V,
    k_m,
    v_m,
    rows,
    lines,
    inside,
    d,
    e,
    VISIBLE,
    visible_n,
    visible_m,
    BIAS,
    bias_n,
    bias_m,
    tables,
    rates,
    low,
    high,
    cut,
    scale,
    N,
    M,
    LINES,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    DIAGONAL: tl.constexpr,
    EDGE: tl.constexpr,
    HAS_VISIBLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NOISE: tl.constexpr,
    DROP: tl.constexpr,
    RANKED: tl.constexpr,
    TIES: tl.constexpr,
    DROPOUT_A: tl.constexpr,
    DROPOUT_B: tl.constexpr,
    STAGES: tl.constexpr,
    near,
    first_row,
    LIST,
    WINDOW: tl.constexpr,
    SIDE: tl.constexpr,
    RAW: tl.constexpr,
):
    """Online softmax over the keys at the places from `begin` to `end`.

    RAW: `largest` and the logits are products, without the scale. It is multiplied in the instruction that subtracts
    the largest one.

    `total` is the sum of all weights, in units of `2**largest`. If weights are divided by the share that is left,
    `spared` is the sum of the kept ones, and `acc` and `spared` are in units of `2**level`. float16 holds no small
    numbers, so there the level is that of the largest kept logit; but it is at most 100 below `largest`, where nothing
    counts.
    """
    WIDE: tl.constexpr = K.dtype.element_ty == tl.float32
    now = 1.0 if RAW else scale
    later = scale if RAW else 1.0
    row_words = load_row_words(tables, lines, inside, NOISE, DROP, DROPOUT_A, DROPOUT_B)
    places = tl.arange(0, BN)
    for place in tl.range(begin, end, BN, num_stages=STAGES):
        start = first_of(place, LIST, SIDE)
        columns = start + places
        k = load_tile(K + start.to(tl.int64) * k_m, places[None, :], k_m, d[:, None], M - start, D, BLOCK_D, EDGE)
        known = (columns < M) if EDGE else None
        key_words = load_key_words(tables, start, places, known, NOISE, DROP, DROPOUT_A, DROPOUT_B)
        s = visible_logits(
            tl.dot(q, k, input_precision="ieee"), rows[:, None], columns[None, :], row_words[0][:, None],
            key_words[0][None, :], VISIBLE, visible_n, visible_m, BIAS, bias_n, bias_m, now, rates[0], N, M,
            HAS_VISIBLE, HAS_BIAS, NOISE, DIAGONAL, EDGE, near, (first_row, start), WINDOW, SIDE,
        )  # fmt: skip
        if DROP != "":
            fill = 0.0 if DROP == "zero" else float("-inf")
            if DROP == "hide" and not RANKED:
                # A sum, which keeps a NaN, and which is one instruction with the scale.
                s += kept(0.0, row_words[1][:, None], key_words[1][None, :], rates[1], fill)
            elif TIES:
                dropped = is_dropped(
                    s, columns[None, :], row_words[1][:, None], key_words[1][None, :], rates[1], low[:, None],
                    high[:, None], cut[:, None], RANKED, TIES,
                )  # fmt: skip
                s = tl.where(dropped, fill, s)
            else:
                least = low[:, None] if RANKED else SEEN
                s = filled(s, row_words[1][:, None], key_words[1][None, :], rates[1], least, fill)
        higher = tl.maximum(largest, tl.max(s, 1))
        base = _finite(higher) * later
        p = power_of_two(s * later - base[:, None], WIDE)
        shrink = power_of_two(largest * later - base, WIDE)
        total = total * shrink + tl.sum(p, 1)
        lines_of_tile = along_rows(row_words)
        keys_of_tile = along_columns(key_words)
        if DROPOUT_A == "share":
            stays = joined(lines_of_tile[2], keys_of_tile[2]) > rates[2]
            p = p * tl.where(stays, 1.0, 0.0)  # a product, which keeps a NaN
            if K.dtype.element_ty == tl.float16:
                above = tl.maximum(tl.max(tl.where(stays, s, float("-inf")), 1), higher - 100.0)
                above = tl.maximum(level, above)
                p = p * power_of_two(base - _finite(above), WIDE)[:, None]
                shrink = power_of_two(level - _finite(above), WIDE)
                level = above
            else:
                level = higher
            spared = spared * shrink + tl.sum(p, 1)
            p = kept_weights(p, lines_of_tile, keys_of_tile, columns[None, :], -1, rates, "", DROPOUT_B)
        else:
            p = kept_weights(p, lines_of_tile, keys_of_tile, columns[None, :], -1, rates, DROPOUT_A, DROPOUT_B)
        v = load_tile(V + start.to(tl.int64) * v_m, places[:, None], v_m, e[None, :], M - start, E, BLOCK_E, EDGE)
        acc = accumulate(p.to(v.dtype), v, acc * shrink[:, None])
        largest = higher
    return acc, total, largest, spared, level
