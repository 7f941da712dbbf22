# mypy: ignore-errors
"""Hard masking on top of plain attention: attention runs without it, then the rows that lose keys are corrected.

Output O and log-sum-exp (the log of the normaliser Z) are enough to correct a row. If it loses keys with values v and
weights w, and each gets a weight f instead (that of a logit 0, or 0), then the new output and normaliser are

    O' = (O + sum (f - w) v) / (1 + sum (f - w)),    Z' = Z (1 + sum (f - w)).

With O' and Z', the plain backward is right for every kept logit. For a lost one, its wrong weight and gradient are
subtracted afterwards. About k p keys of a row are corrected, at any length. The subtraction loses digits if a row has
lost much of its weight. So a row that lost more than LIMIT of its weight is put on a list ("listed rows"), and the
kernels of `decide` compute it. Its log-sum-exp here is +inf, which makes all its weights 0 in the plain backward.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..shared.logits import SIZES, append_rows, tile_rows

#: The largest share of a row's weight that is corrected here; rounding errors grow by 1 / (1 - LIMIT).
LIMIT = tl.constexpr(0.25)
#: If the weight f of a filled key is larger, the row is listed, since f would overflow.
HEAVIEST = tl.constexpr(1.0e6)


@triton.jit
def _gather(base, positions, stride, features, wanted, SIZE: tl.constexpr):
    """Rows of a tensor [length, SIZE], in float32; zeros where they are not `wanted`, which are not read."""
    place = base + positions[:, None].to(tl.int64) * stride + features[None, :]
    return tl.load(place, mask=wanted[:, None] & (features[None, :] < SIZE), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["N"])
def list_rows_kernel(LOST, LSE, ROWS, COUNTS, LEFT, LEFT_COUNTS, N, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """Program: some rows of one head. Lists those that lost keys, and those that other kernels compute."""
    tiles = tl.cdiv(N, BLOCK)
    head = (tl.program_id(0) // tiles).to(tl.int64)
    rows = (tl.program_id(0) % tiles) * BLOCK + tl.arange(0, BLOCK)
    lines = head * N + rows
    touched = tl.load(LOST + lines * TOP, mask=rows < N, other=-1) >= 0
    append_rows(touched, rows, ROWS + head * N, COUNTS + head)
    left = tl.load(LSE + lines, mask=rows < N, other=0.0) == float("inf")
    append_rows(left, rows, LEFT + head * N, LEFT_COUNTS + head)


@triton.jit(do_not_specialize=[*SIZES])
def amend_output_kernel(
    Q,
    K,
    V,
    OUT,
    LSE,
    LOST,
    ROWS,
    COUNTS,
    LEFT,
    LEFT_COUNTS,
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
    scale,
    H,
    GROUP,
    N,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BM: tl.constexpr,
    TOP: tl.constexpr,
    ZERO: tl.constexpr,
):
    """Program: some rows of one head that lost keys. Corrects `OUT` and `LSE`; `LOST` [rows, TOP] has keys, then -1.

    Rows that other kernels must compute are added to `LEFT`, and their part of `LOST` becomes -1.
    """
    tiles = tl.cdiv(N, BM)
    head = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tl.program_id(0) % tiles) * BM
    if first >= tl.load(COUNTS + head):
        return
    b = head // H
    h = head % H
    rows = tile_rows(first, ROWS + head * N, COUNTS + head, N, BM, True)
    touched = rows < N
    lines = head * N + rows
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_E)
    K += b * k_b + (h // GROUP) * k_h
    V += b * v_b + (h // GROUP) * v_h
    key = tl.load(LOST + lines * TOP, mask=touched, other=-1)
    lse = tl.load(LSE + lines, mask=touched, other=0.0)
    q = _gather(Q + b * q_b + h * q_h, rows, q_n, d, touched, D)
    fill = tl.exp(tl.minimum(-lse, 80.0)) if ZERO else tl.zeros([BM], tl.float32)
    gone = tl.zeros([BM], tl.float32)
    change = tl.zeros([BM], tl.float32)
    out_base = OUT + b * out_b + h * out_h
    out = _gather(out_base, rows, out_n, e, touched, E)
    # Stops when no row of the tile has a further lost key, usually long before k.
    rank = tl.zeros([BM], tl.int32)
    while tl.max(key) >= 0:
        lost = key >= 0
        k = _gather(K, key, k_m, d, lost, D)
        v = _gather(V, key, v_m, e, lost, E)
        rank += 1
        following = tl.load(LOST + lines * TOP + rank, mask=lost & (rank < TOP), other=-1)
        weight = tl.where(lost, tl.exp(tl.minimum(tl.sum(q * k, 1) * scale - lse, 0.0)), 0.0)
        gain = tl.where(lost, fill - weight, 0.0)
        gone += weight
        change += gain
        out += gain[:, None] * v
        key = following
    heavy = touched & ~((gone <= LIMIT) & (fill <= HEAVIEST))
    light = touched & ~heavy
    share = tl.where(light, 1.0 + change, 1.0)
    place = out_base + rows[:, None].to(tl.int64) * out_n + e[None, :]
    out = tl.where(light[:, None], out / share[:, None], 0.0)
    tl.store(place, out.to(OUT.dtype.element_ty), mask=light[:, None] & (e[None, :] < E))
    tl.store(LSE + lines, tl.where(heavy, float("inf"), lse + tl.log(share)), mask=touched)
    append_rows(heavy, rows, LEFT + head * N, LEFT_COUNTS + head)
    for rank in tl.static_range(TOP):
        tl.store(LOST + lines * TOP + rank, -1, mask=heavy)


@triton.jit(do_not_specialize=[*SIZES, "KEY_TILES"])
def amend_queries_kernel(
    Q,
    K,
    V,
    OUT,
    GRAD,
    LSE,
    LOST,
    DQ,
    KEY_SHARES,
    VALUE_SHARES,
    TALLY,
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
    scale,
    H,
    GROUP,
    N,
    KEY_TILES,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    TOP: tl.constexpr,
    ZERO: tl.constexpr,
):
    """Program: some rows of one head that lost keys. Corrects `DQ`, and prepares the correction of `DK` and `DV`.

    `KEY_SHARES` [rows, TOP]: the factor on the row's query that is added to the gradient of the lost key.
    `VALUE_SHARES` [rows, TOP]: the factor on the row's output gradient that is added to the gradient of its value.
    `TALLY`: the number of lost keys in each tile of keys.
    """
    tiles = tl.cdiv(N, BM)
    head = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tl.program_id(0) % tiles) * BM
    if first >= tl.load(COUNTS + head):
        return
    b = head // H
    h = head % H
    rows = tile_rows(first, ROWS + head * N, COUNTS + head, N, BM, True)
    touched = rows < N
    lines = head * N + rows
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_E)
    K += b * k_b + (h // GROUP) * k_h
    V += b * v_b + (h // GROUP) * v_h
    key = tl.load(LOST + lines * TOP, mask=touched, other=-1)
    q = _gather(Q + b * q_b + h * q_h, rows, q_n, d, touched, D)
    grad = _gather(GRAD + b * grad_b + h * grad_h, rows, grad_n, e, touched, E)
    delta = tl.sum(_gather(OUT + b * out_b + h * out_h, rows, out_n, e, touched, E) * grad, 1)
    lse = tl.load(LSE + lines, mask=touched, other=0.0)
    fill = tl.exp(tl.minimum(-lse, 0.0)) if ZERO else tl.zeros([BM], tl.float32)
    dq_base = DQ + b * dq_b + h * dq_h
    dq = _gather(dq_base, rows, dq_n, d, touched, D)
    rank = tl.zeros([BM], tl.int32)
    while tl.max(key) >= 0:
        lost = key >= 0
        k = _gather(K, key, k_m, d, lost, D)
        v = _gather(V, key, v_m, e, lost, E)
        following = tl.load(LOST + lines * TOP + rank + 1, mask=lost & (rank + 1 < TOP), other=-1)
        weight = tl.exp(tl.minimum(tl.sum(q * k, 1) * scale - lse, 0.0))
        slope = tl.sum(grad * v, 1) - delta
        share = -weight * slope * scale
        dq += tl.where(lost, share, 0.0)[:, None] * k
        tl.store(KEY_SHARES + lines * TOP + rank, share, mask=lost)
        tl.store(VALUE_SHARES + lines * TOP + rank, fill - weight, mask=lost)
        tl.atomic_add(TALLY + head * KEY_TILES + key // BN, 1, mask=lost, sem="relaxed")
        key = following
        rank += 1
    place = dq_base + rows[:, None].to(tl.int64) * dq_n + d[None, :]
    tl.store(place, dq.to(DQ.dtype.element_ty), mask=touched[:, None] & (d[None, :] < D))


@triton.jit(do_not_specialize=["N", "KEY_TILES", "total"])
def sort_lost_kernel(
    LOST, CURSORS, ENTRIES, N, KEY_TILES, total, BN: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr
):
    """Program: some of all lost keys. Sorts them by tiles of keys: `ENTRIES` gets their places in `LOST`."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(LOST + place, mask=place < total, other=-1)
    lost = key >= 0
    head = place // (N * TOP)
    at = tl.atomic_add(CURSORS + head * KEY_TILES + key // BN, 1, mask=lost, sem="relaxed")
    tl.store(ENTRIES + head * N * TOP + at, (place - head * N * TOP).to(tl.int32), mask=lost)


@triton.jit(do_not_specialize=[*SIZES, "KEY_TILES"])
def amend_keys_kernel(
    Q,
    GRAD,
    LOST,
    KEY_SHARES,
    VALUE_SHARES,
    TALLY,
    ENDS,
    ENTRIES,
    DK,
    DV,
    q_b,
    q_h,
    q_n,
    grad_b,
    grad_h,
    grad_n,
    dk_b,
    dk_h,
    dk_m,
    dv_b,
    dv_h,
    dv_m,
    HK,
    GROUP,
    N,
    KEY_TILES,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BN: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP: tl.constexpr,
):
    """Program: one tile of keys of one key head. Adds the corrections to the gradients of keys and values."""
    key_head = (tl.program_id(0) // KEY_TILES).to(tl.int64)
    tile = tl.program_id(0) % KEY_TILES
    owed = 0
    for member in range(GROUP):
        owed += tl.load(TALLY + (key_head * GROUP + member) * KEY_TILES + tile)
    if owed == 0:
        return
    b = key_head // HK
    hk = key_head % HK
    columns = tile * BN + tl.arange(0, BN)
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_E)
    dk = tl.zeros([BN, BLOCK_D], tl.float32)
    dv = tl.zeros([BN, BLOCK_E], tl.float32)
    touched = tl.zeros([BN], tl.int32)
    for member in range(GROUP):
        h = hk * GROUP + member
        head = key_head * GROUP + member
        end = tl.load(ENDS + head * KEY_TILES + tile)
        begin = end - tl.load(TALLY + head * KEY_TILES + tile)
        for start in tl.range(begin, end, BLOCK, num_stages=1):
            number = start + tl.arange(0, BLOCK)
            known = number < end
            entry = tl.load(ENTRIES + head * N * TOP + number, mask=known, other=0)
            row = entry // TOP
            place = head * N * TOP + entry
            key = tl.load(LOST + place, mask=known, other=-1)
            mine = columns[:, None] == key[None, :]
            touched = tl.maximum(touched, tl.max(mine.to(tl.int32), 1))
            q = _gather(Q + b * q_b + h * q_h, row, q_n, d, known, D).to(Q.dtype.element_ty)
            share = tl.load(KEY_SHARES + place, mask=known, other=0.0)
            dk = tl.dot(tl.where(mine, share[None, :], 0.0).to(q.dtype), q, dk)
            grad = _gather(GRAD + b * grad_b + h * grad_h, row, grad_n, e, known, E).to(GRAD.dtype.element_ty)
            share = tl.load(VALUE_SHARES + place, mask=known, other=0.0)
            dv = tl.dot(tl.where(mine, share[None, :], 0.0).to(grad.dtype), grad, dv)
    lost = touched > 0
    dk_base = DK + b * dk_b + hk * dk_h
    dk_place = dk_base + columns[:, None].to(tl.int64) * dk_m + d[None, :]
    dk += _gather(dk_base, columns, dk_m, d, lost, D)
    tl.store(dk_place, dk.to(DK.dtype.element_ty), mask=lost[:, None] & (d[None, :] < D))
    dv_base = DV + b * dv_b + hk * dv_h
    dv_place = dv_base + columns[:, None].to(tl.int64) * dv_m + e[None, :]
    dv += _gather(dv_base, columns, dv_m, e, lost, E)
    tl.store(dv_place, dv.to(DV.dtype.element_ty), mask=lost[:, None] & (e[None, :] < E))
