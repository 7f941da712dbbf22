# mypy: ignore-errors
"""The gradients of keys and values: one program goes through all rows for a tile of keys, so no atomics are needed."""

from __future__ import annotations

import triton
import triton.language as tl

from ..shared.local import first_of, near_of, places_of
from ..shared.logits import (
    SIZES,
    accumulate,
    along_columns,
    along_rows,
    in_64_bits,
    kept_weights,
    load_key_words,
    load_notes,
    load_rates,
    load_row_words,
    load_shares,
    load_tile,
    tables_of,
    tile_rows,
    weight_growth,
    with_growth,
)
from .gradient import weights_and_gradient


@triton.jit(do_not_specialize=[*SIZES])
def key_kernel(
    Q,
    K,
    V,
    GRAD,
    LSE,
    DELTA,
    DK,
    DV,
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
    grad_b,
    grad_h,
    grad_n,
    dk_b,
    dk_h,
    dk_m,
    dv_b,
    dv_h,
    dv_m,
    visible_b,
    visible_h,
    visible_n,
    visible_m,
    bias_b,
    bias_h,
    bias_n,
    bias_m,
    scale,
    plain_scale,
    HK,
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
    WHOLE: tl.constexpr,
    WINDOW: tl.constexpr,
    SIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Program: the gradients of one tile of keys and values of one key head, over the query heads that share it.

    LISTED: use only the listed rows (see the forward), and add to the gradients that are in memory.
    """
    tiles = tl.cdiv(M, BN)
    key_head = (tl.program_id(0) // tiles).to(tl.int64)
    if LISTED:
        listed = 0
        for member in range(GROUP):
            listed = tl.maximum(listed, tl.load(COUNTS + key_head * GROUP + member))
        if listed == 0:
            return
    elif RANKED:
        tied = 0
        for member in range(GROUP):
            tied = tl.maximum(tied, tl.load(TIED + key_head * GROUP + member))
        if (tied > 0) != TIES:
            return
    tile = tl.program_id(0) % tiles
    b = key_head // HK
    hk = key_head % HK
    columns = tile * BN + tl.arange(0, BN)
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_E)
    inside = columns < M
    k = load_tile(K + b * k_b + hk * k_h, columns[:, None], k_m, d[None, :], M, D, BLOCK_D, True)
    v = load_tile(V + b * v_b + hk * v_h, columns[:, None], v_m, e[None, :], M, E, BLOCK_E, True)
    if FAR:
        visible_n, visible_m, bias_n, bias_m = in_64_bits(visible_n, visible_m, bias_n, bias_m)
    dk = tl.zeros([BN, BLOCK_D], tl.float32)
    dv = tl.zeros([BN, BLOCK_E], tl.float32)
    rates = load_rates(LIMITS, FACTORS)
    begin = 0
    edge = 0
    if CAUSAL and not LISTED:
        # Rows before the tile's first key see none of it; from `edge` on they see all of it.
        begin = tile * BN // BM * BM
        edge = tl.minimum(tl.cdiv(tile * BN + BN - 1, BM) * BM, tl.cdiv(N, BM) * BM)
    # A row that lost every key keeps one, with weight 1 and no gradient of its logit. The sweeps know nothing of it.
    ALONE: tl.constexpr = DROP == "hide" and DROPOUT_A != "share"
    if ALONE:
        alone = _keeps_any(KEEP + key_head * GROUP * N, GROUP * N, tile * BN, BN)
    for member in range(GROUP):
        h = hk * GROUP + member
        head = b * (HK * GROUP) + h
        tables = tables_of(WORDS, head, LINES, slot_words, head_words)
        q_base = Q + b * q_b + h * q_h
        grad_base = GRAD + b * grad_b + h * grad_h
        visible_base = VISIBLE + b * visible_b + h * visible_h
        bias_base = BIAS + b * bias_b + h * bias_h
        end = N
        if LISTED:
            end = tl.load(COUNTS + head)
        seen = edge
        near = near_of(STATES, PATTERNS, b, h, states_b, states_h, left, right)
        LIST = LISTS
        if SIDE > 0:
            LIST += b * states_b + h * states_h + (tile * BN // SIDE) * tl.cdiv(N, SIDE)
        if WINDOW or SIDE > 0:
            # A key is seen by the rows from `right` before to `left` behind it.
            LENGTH = LENGTHS + b * lengths_b + h * lengths_h
            seen, end = places_of(tile * BN, right, left, N, LENGTH, BN, BM, WINDOW, SIDE)
        if CAUSAL and not LISTED:
            dk, dv = _along_rows(
                begin, edge, dk, dv, k, v, q_base, grad_base, q_n, grad_n, columns, head, d, e, LSE, DELTA, LOW, HIGH,
                CUT, KEEP, GROWTH, ROWS, COUNTS, visible_base, visible_n, visible_m, bias_base, bias_n, bias_m, tables,
                rates, scale, N, M, LINES, D, E, BLOCK_D, BLOCK_E, BM, True, HAS_VISIBLE, HAS_BIAS, NOISE, DROP, RANKED,
                TIES, DROPOUT_A, DROPOUT_B, LISTED, 1, near, tile * BN, LIST, False, 0,
                WHOLE,
            )  # fmt: skip
        dk, dv = _along_rows(
            seen, end, dk, dv, k, v, q_base, grad_base, q_n, grad_n, columns, head, d, e, LSE, DELTA, LOW, HIGH, CUT,
            KEEP, GROWTH, ROWS, COUNTS, visible_base, visible_n, visible_m, bias_base, bias_n, bias_m, tables, rates,
            scale, N, M, LINES, D, E, BLOCK_D, BLOCK_E, BM, CAUSAL and LISTED, HAS_VISIBLE, HAS_BIAS, NOISE, DROP,
            RANKED, TIES, DROPOUT_A, DROPOUT_B, LISTED, STAGES, near, tile * BN, LIST, WINDOW, SIDE, WHOLE,
        )  # fmt: skip
    if ALONE:
        for member in range(GROUP * alone):
            h = hk * GROUP + member
            dv = _kept_alone(
                dv, GRAD + b * grad_b + h * grad_h, grad_n, columns, b * (HK * GROUP) + h, e, KEEP, ROWS, COUNTS, WORDS,
                LINES, slot_words, head_words, rates, N, M, E, BLOCK_E, BM, DROPOUT_A, DROPOUT_B, LISTED,
            )  # fmt: skip
    dk_place = DK + b * dk_b + hk * dk_h + columns[:, None].to(tl.int64) * dk_m + d[None, :]
    dv_place = DV + b * dv_b + hk * dv_h + columns[:, None].to(tl.int64) * dv_m + e[None, :]
    dk_mask = inside[:, None] & (d[None, :] < D)
    dv_mask = inside[:, None] & (e[None, :] < E)
    growth = weight_growth(rates, DROPOUT_A, DROPOUT_B)
    dk = dk * (plain_scale * growth)
    dv = dv * growth
    if LISTED:
        dk += tl.load(dk_place, mask=dk_mask, other=0.0).to(tl.float32)
        dv += tl.load(dv_place, mask=dv_mask, other=0.0).to(tl.float32)
    tl.store(dk_place, dk.to(DK.dtype.element_ty), mask=dk_mask)
    tl.store(dv_place, dv.to(DV.dtype.element_ty), mask=dv_mask)


@triton.jit
def _along_rows(
    begin,
    end,
    dk,
    dv,
    k,
    v,
    Q,
    GRAD,
    q_n,
    grad_n,
    columns,
    head,
    d,
    e,
    LSE,
    DELTA,
    LOW,
    HIGH,
    CUT,
    KEEP,
    GROWTH,
    ROWS,
    COUNTS,
    VISIBLE,
    visible_n,
    visible_m,
    BIAS,
    bias_n,
    bias_m,
    tables,
    rates,
    scale,
    N,
    M,
    LINES,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BM: tl.constexpr,
    DIAGONAL: tl.constexpr,
    HAS_VISIBLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NOISE: tl.constexpr,
    DROP: tl.constexpr,
    RANKED: tl.constexpr,
    TIES: tl.constexpr,
    DROPOUT_A: tl.constexpr,
    DROPOUT_B: tl.constexpr,
    LISTED: tl.constexpr,
    STAGES: tl.constexpr,
    near,
    first_key,
    LIST,
    WINDOW: tl.constexpr,
    SIDE: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Add the contribution of the rows at the places from `begin` to `end`.

    Tiles are [rows, keys] here, too: values that belong to a row are then one value in a thread, not a vector.
    Rows past the end have gradient 0 and log-sum-exp 0, so they add nothing. Keys past the end are not stored.
    WHOLE: there is at least one tile of rows. The last tile then begins so that it ends with the last row. Rows that
    the tile before had, too, get no weight by an infinite log-sum-exp. So no load needs a mask.
    """
    key_words = load_key_words(tables, 0, columns, columns < M, NOISE, DROP, DROPOUT_A, DROPOUT_B)
    shrink = 1.0 / weight_growth(rates, DROPOUT_A, DROPOUT_B)
    for place in tl.range(begin, end, BM, num_stages=STAGES):
        start = first_of(place, LIST, SIDE)
        if WHOLE:
            start = tl.minimum(start, N - BM)
        rows = tile_rows(start, ROWS + head * N, COUNTS + head, N, BM, LISTED)
        known = None if WHOLE else rows < N
        lines = head * N + rows
        if LISTED:
            q = load_tile(Q, rows[:, None], q_n, d[None, :], N, D, BLOCK_D, True)
            grad = load_tile(GRAD, rows[:, None], grad_n, e[None, :], N, E, BLOCK_E, True)
        else:
            places = tl.arange(0, BM)[:, None]
            q = load_tile(Q + start.to(tl.int64) * q_n, places, q_n, d[None, :], N - start, D, BLOCK_D, not WHOLE)
            grad = load_tile(
                GRAD + start.to(tl.int64) * grad_n, places, grad_n, e[None, :], N - start, E, BLOCK_E, not WHOLE
            )
        lse = load_notes(LSE, lines, known, 0.0)
        if WHOLE:
            lse = tl.where(rows >= place, lse, float("inf"))
        share = load_shares(LSE + LINES, lines, known, Q.dtype.element_ty == tl.float32)
        delta = load_notes(DELTA, lines, known, 0.0) * shrink
        low = load_notes(LOW, lines, known, 0.0) if RANKED else lse
        high = load_notes(HIGH, lines, known, 0.0) if TIES else lse
        cut = load_notes(CUT, lines, known, 0) if TIES else rows
        keep = load_notes(KEEP, lines, known, -1) if DROPOUT_A == "share" else rows
        row_rates = with_growth(rates, GROWTH, lines, known, DROPOUT_A)
        row_words = load_row_words(tables, lines, known, NOISE, DROP, DROPOUT_A, DROPOUT_B)
        _, weights, ds = weights_and_gradient(
            tl.dot(q, tl.trans(k), input_precision="ieee"), tl.dot(grad, tl.trans(v), input_precision="ieee"),
            rows[:, None], columns[None, :], along_rows(row_words), along_columns(key_words), lse[:, None], share,
            delta[:, None], low[:, None], high[:, None], cut[:, None], keep[:, None], VISIBLE, visible_n, visible_m,
            BIAS, bias_n, bias_m, row_rates, scale, N, M, DIAGONAL, False, HAS_VISIBLE, HAS_BIAS, NOISE, DROP,
            RANKED, TIES, DROPOUT_A, DROPOUT_B, Q.dtype.element_ty == tl.float32, near, (start, first_key), WINDOW,
            SIDE,
        )  # fmt: skip
        dv = accumulate(tl.trans(weights.to(grad.dtype)), grad, dv)
        dk = accumulate(tl.trans(ds.to(q.dtype)), q, dk)
    return dk, dv


@triton.jit
def _keeps_any(KEEP, length, first, BN: tl.constexpr):
    """1 if one of `length` rows keeps one of the BN keys from `first` on, else 0."""
    found = tl.zeros([1024], tl.int32)
    for start in tl.range(0, length, 1024, num_stages=1):
        rows = start + tl.arange(0, 1024)
        keep = tl.load(KEEP + rows, mask=rows < length, other=-1)
        found |= ((keep >= first) & (keep < first + BN)).to(tl.int32)
    return tl.max(found, 0)


@triton.jit
def _kept_alone(
    dv, GRAD, grad_n, columns, head, e, KEEP, ROWS, COUNTS, WORDS, LINES, slot_words, head_words, rates, N, M,
    E: tl.constexpr, BLOCK_E: tl.constexpr, BM: tl.constexpr, DROPOUT_A: tl.constexpr, DROPOUT_B: tl.constexpr,
    LISTED: tl.constexpr,
):  # fmt: skip
    """Add the gradient of values that are the only one of a row."""
    tables = tables_of(WORDS, head, LINES, slot_words, head_words)
    key_words = load_key_words(tables, 0, columns, columns < M, False, "", DROPOUT_A, DROPOUT_B)
    end = N
    if LISTED:
        end = tl.load(COUNTS + head)
    for start in tl.range(0, end, BM, num_stages=1):
        rows = tile_rows(start, ROWS + head * N, COUNTS + head, N, BM, LISTED)
        known = rows < N
        lines = head * N + rows
        keep = tl.load(KEEP + lines, mask=known, other=-1)
        grad = load_tile(GRAD, rows[:, None], grad_n, e[None, :], N, E, BLOCK_E, True)
        row_words = load_row_words(tables, lines, known, False, "", DROPOUT_A, DROPOUT_B)
        weights = kept_weights(
            tl.where(columns[None, :] == keep[:, None], 1.0, 0.0), along_rows(row_words), along_columns(key_words),
            columns[None, :], -1, rates, DROPOUT_A, DROPOUT_B,
        )  # fmt: skip
        dv = accumulate(tl.trans(weights.to(grad.dtype)), grad, dv)
    return dv
