# mypy: ignore-errors
"""The gradient of the queries: one program goes through all keys for a tile of rows. It computes delta = dO.O first."""

from __future__ import annotations

import triton
import triton.language as tl

from ..shared.local import first_of, near_of, places_of
from ..shared.logits import (
    SIZES,
    accumulate,
    along_columns,
    along_rows,
    causal_range,
    in_64_bits,
    is_others,
    load_key_words,
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
def query_kernel(
    Q,
    K,
    V,
    OUT,
    GRAD,
    LSE,
    DELTA,
    DQ,
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
    grad_b,
    grad_h,
    grad_n,
    dq_b,
    dq_h,
    dq_n,
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
    WINDOW: tl.constexpr,
    SIDE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Program: the gradient of one tile of queries of one head, and their delta. LISTED: see the forward."""
    tiles = tl.cdiv(N, BM)
    head = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    if CAUSAL and not LISTED:
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
    grad = load_tile(GRAD + b * grad_b + h * grad_h, rows[:, None], grad_n, e[None, :], N, E, BLOCK_E, True)
    out = load_tile(OUT + b * out_b + h * out_h, rows[:, None], out_n, e[None, :], N, E, BLOCK_E, True)
    delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    lse = tl.load(LSE + lines, mask=inside, other=0.0)
    share = load_shares(LSE + LINES, lines, inside, Q.dtype.element_ty == tl.float32)
    K += b * k_b + (h // GROUP) * k_h
    V += b * v_b + (h // GROUP) * v_h
    VISIBLE += b * visible_b + h * visible_h
    BIAS += b * bias_b + h * bias_h
    if FAR:
        visible_n, visible_m, bias_n, bias_m = in_64_bits(visible_n, visible_m, bias_n, bias_m)
    low = tl.load(LOW + lines, mask=inside, other=0.0) if RANKED else lse
    high = tl.load(HIGH + lines, mask=inside, other=0.0) if TIES else lse
    cut = tl.load(CUT + lines, mask=inside, other=0) if TIES else rows
    keep = tl.load(KEEP + lines, mask=inside, other=-1) if DROPOUT_A == "share" else rows
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
    rates = with_growth(load_rates(LIMITS, FACTORS), GROWTH, lines, inside, DROPOUT_A)
    tables = tables_of(WORDS, head, LINES, slot_words, head_words)
    if end - begin <= BN:
        # The output was rounded. If a row sees few keys, `dO.v - delta` may be as small as that rounding error. All its
        # keys are in one tile then, so delta is computed exactly from the weights of that tile.
        delta = _exact_delta(
            q, grad, K, V, k_m, v_m, rows, lines, d, e, lse, share, low, high, cut, keep, VISIBLE, visible_n,
            visible_m, BIAS, bias_n, bias_m, tables, rates, scale, N, M, LINES, D, E, BLOCK_D, BLOCK_E, BN, CAUSAL,
            HAS_VISIBLE, HAS_BIAS, NOISE, DROP, RANKED, TIES, DROPOUT_A, DROPOUT_B, near, tile * BM,
            first_of(begin, LIST, SIDE), WINDOW, SIDE,
        )  # fmt: skip
    tl.store(DELTA + lines, delta, mask=inside)
    growth = weight_growth(rates, DROPOUT_A, DROPOUT_B)
    delta = delta / growth
    dq = tl.zeros([BM, BLOCK_D], tl.float32)
    dq = _along_keys(
        begin, full, dq, q, grad, K, V, k_m, v_m, rows, lines, d, e, lse, share, delta, low, high, cut, keep, VISIBLE,
        visible_n, visible_m, BIAS, bias_n, bias_m, tables, rates, scale, N, M, LINES, D, E, BLOCK_D, BLOCK_E, BN,
        False, False, HAS_VISIBLE, HAS_BIAS, NOISE, DROP, RANKED, TIES, DROPOUT_A, DROPOUT_B, STAGES,
        near, tile * BM, LIST, False, 0,
    )  # fmt: skip
    dq = _along_keys(
        full, end, dq, q, grad, K, V, k_m, v_m, rows, lines, d, e, lse, share, delta, low, high, cut, keep, VISIBLE,
        visible_n, visible_m, BIAS, bias_n, bias_m, tables, rates, scale, N, M, LINES, D, E, BLOCK_D, BLOCK_E,
        BN, CAUSAL, True, HAS_VISIBLE, HAS_BIAS, NOISE, DROP, RANKED, TIES, DROPOUT_A, DROPOUT_B,
        STAGES if LOCAL else 1, near, tile * BM, LIST, WINDOW, SIDE,
    )  # fmt: skip
    place = DQ + b * dq_b + h * dq_h + rows[:, None].to(tl.int64) * dq_n + d[None, :]
    tl.store(place, (dq * (plain_scale * growth)).to(DQ.dtype.element_ty), mask=inside[:, None] & (d[None, :] < D))


@triton.jit
def _exact_delta(
    q, grad, K, V, k_m, v_m, rows, lines, d, e, lse, share, low, high, cut, keep, VISIBLE, visible_n, visible_m,
    BIAS, bias_n, bias_m, tables, rates, scale, N, M, LINES, D: tl.constexpr, E: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_VISIBLE: tl.constexpr, HAS_BIAS: tl.constexpr, NOISE: tl.constexpr, DROP: tl.constexpr, RANKED: tl.constexpr,
    TIES: tl.constexpr, DROPOUT_A: tl.constexpr, DROPOUT_B: tl.constexpr, near, first_row, first_key,
    WINDOW: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """delta = `dO.O` as the sum of `weight * dO.v` over the BN keys from `first_key` on, plus a correction.

    The gradients of a row's logits must add up to 0. The correction is what they lack, which removes the rounding
    errors of the first sum and of the weights. It matters where one weight is nearly 1: there `dO.v - delta` is hardly
    larger than these errors.
    """
    columns = first_key + tl.arange(0, BN)
    row_words = load_row_words(tables, lines, rows < N, NOISE, DROP, DROPOUT_A, DROPOUT_B)
    key_words = load_key_words(tables, 0, columns, columns < M, NOISE, DROP, DROPOUT_A, DROPOUT_B)
    k = load_tile(K, columns[None, :], k_m, d[:, None], M, D, BLOCK_D, True)
    v = load_tile(V, columns[None, :], v_m, e[:, None], M, E, BLOCK_E, True)
    met = tl.dot(grad, v, input_precision="ieee")
    p, weights, _ = weights_and_gradient(
        tl.dot(q, k, input_precision="ieee"), met, rows[:, None], columns[None, :], along_rows(row_words),
        along_columns(key_words), lse[:, None], share, 0.0, low[:, None], high[:, None], cut[:, None], keep[:, None],
        VISIBLE, visible_n, visible_m, BIAS, bias_n, bias_m, rates, scale, N, M, CAUSAL, True, HAS_VISIBLE, HAS_BIAS,
        NOISE, DROP, RANKED, TIES, DROPOUT_A, DROPOUT_B, K.dtype.element_ty == tl.float32, near,
        (first_row, first_key), WINDOW, SIDE,
    )  # fmt: skip
    if DROPOUT_A != "" or DROPOUT_B:
        growth = rates[4] if DROPOUT_A == "share" else 1.0
        met = tl.where(weights > 0.0, met * (growth * weight_growth(rates, DROPOUT_A, DROPOUT_B)), 0.0)
    delta = tl.sum(p * met, 1)
    return delta + tl.sum(p * (met - delta[:, None]), 1)


@triton.jit
def _along_keys(
    begin,
    end,
    dq,
    q,
    grad,
    K,
    V,
    k_m,
    v_m,
    rows,
    lines,
    d,
    e,
    lse,
    share,
    delta,
    low,
    high,
    cut,
    keep,
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
):
    """Add the contribution of the keys at the places from `begin` to `end`."""
    row_words = load_row_words(tables, lines, rows < N, NOISE, DROP, DROPOUT_A, DROPOUT_B)
    places = tl.arange(0, BN)
    for place in tl.range(begin, end, BN, num_stages=STAGES):
        start = first_of(place, LIST, SIDE)
        columns = start + places
        known = (columns < M) if EDGE else None
        key_words = load_key_words(tables, start, places, known, NOISE, DROP, DROPOUT_A, DROPOUT_B)
        k = load_tile(K + start.to(tl.int64) * k_m, places[None, :], k_m, d[:, None], M - start, D, BLOCK_D, EDGE)
        v = load_tile(V + start.to(tl.int64) * v_m, places[None, :], v_m, e[:, None], M - start, E, BLOCK_E, EDGE)
        _, _, ds = weights_and_gradient(
            tl.dot(q, k, input_precision="ieee"), tl.dot(grad, v, input_precision="ieee"), rows[:, None],
            columns[None, :], along_rows(row_words), along_columns(key_words), lse[:, None], share, delta[:, None],
            low[:, None], high[:, None], cut[:, None], keep[:, None], VISIBLE, visible_n, visible_m, BIAS, bias_n,
            bias_m, rates, scale, N, M, DIAGONAL, EDGE, HAS_VISIBLE, HAS_BIAS, NOISE, DROP, RANKED, TIES, DROPOUT_A,
            DROPOUT_B, K.dtype.element_ty == tl.float32, near, (first_row, start), WINDOW, SIDE,
        )  # fmt: skip
        dq = accumulate(ds.to(k.dtype), tl.trans(k), dq)
    return dq
