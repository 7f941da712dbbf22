# mypy: ignore-errors
"""The diagonals where a causal mask truncates the blur, merged with attention over blurred keys (the *part*): Triton.

For row i and key j = i - t, t = 0..r-1, the blur kernel is truncated. These r logits of each row, the *band* (see
`band`), and the logits of the part share one softmax.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..shared.compiler_options import OPTIONS, stride_names
from ..shared.current_device import on_device
from .band import UNROLL, band_of, gradient_of_keys, gradient_of_queries, places_in_band, share_in_band
from .rows import (
    Blur,
    blurred_tile,
    first_row,
    gaussian,
    in_units,
    load_rows,
    seen,
    tile_rows,
    visible_argument,
)


@triton.jit
def _column(band, slots, t):
    """Slot `t` of each row."""
    return tl.sum(tl.where((slots == t)[None, :], band, 0.0), axis=1)


@triton.jit(
    do_not_specialize=[
        *(
            "stream",
            "per_group",
            "heads",
            "group",
            "queries",
            "keys",
            "visible_batch",
            "visible_head",
            "part_lse_batch",
            "part_lse_head",
        ),
        *stride_names("q", "k", "v", "part", "out"),
    ]
)
def merge_kernel(
    q, k, v, part, part_lse, out, lse, weights, seed, gate, visible, stream, per_group, sigma_min, sigma_span, scale,
    heads, group, queries, keys,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    part_batch, part_head, part_row, out_batch, out_head, out_row, part_lse_batch, part_lse_head, part_lse_row,
    visible_batch, visible_head, visible_place,
    SAMPLING: tl.constexpr, HAS_GATE: tl.constexpr, HAS_VISIBLE: tl.constexpr, HAS_PART: tl.constexpr,
    RENORMALIZE: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, UNIT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exp of one tile of rows of one head, from the band and the part over blurred keys.

    The weights of the band are kept for the backward: [B, H, r, N], with the weight of key i - t at [t, i].
    """
    RADIUS: tl.constexpr = WIDTH // 2
    index = tl.program_id(0).to(tl.int64)
    batch = index // heads
    head = index % heads
    rows = first_row(BLOCK_N, LONG) + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_D)
    value_columns = tl.arange(0, BLOCK_E)
    slots = tl.arange(0, SLOTS)
    rate, norm = gaussian(
        seed, gate, stream, per_group, batch, head, sigma_min, sigma_span, SAMPLING, HAS_GATE, WIDTH
    )  # fmt: skip
    if HAS_VISIBLE:
        visible += batch * visible_batch + head * visible_head
    k += (batch * k_batch + (head // group) * k_head) * UNIT
    v += (batch * v_batch + (head // group) * v_head) * UNIT
    q += (batch * q_batch + head * q_head) * UNIT

    q_tile = load_rows(q, q_row, rows, rows < queries, columns, SIZE, UNIT) * scale
    band = band_of(
        q_tile, k, k_row, rows, columns, slots, rate, norm, visible, visible_place, keys, SIZE, UNIT, RADIUS,
        HAS_VISIBLE, RENORMALIZE,
    )  # fmt: skip
    top = tl.max(band, axis=1)
    total = tl.zeros_like(top)
    output = tl.zeros([BLOCK_N, BLOCK_E], tl.float32)
    if HAS_PART:
        # Row i of the whole is row i - r of the part.
        places = rows - RADIUS
        inside = (places >= 0) & (rows < queries)
        part_lse += batch * part_lse_batch + head * part_lse_head
        other = tl.load(part_lse + places * part_lse_row, mask=inside, other=float("-inf"))
        top = tl.maximum(top, other)
    # A row that sees no key has only logits of -inf: a finite maximum gives it weights of 0 without a NaN.
    blind = top == float("-inf")
    top = tl.where(blind, 0.0, top)
    band = tl.exp(band - top[:, None])
    total += tl.sum(band, axis=1)
    if HAS_PART:
        other_weight = tl.exp(other - top)
        total += other_weight
    total = tl.where(blind, 1.0, total)
    if HAS_PART:
        # Rows that see no key of the part may hold any value there, even NaN: they are not read.
        part += (batch * part_batch + head * part_head) * UNIT
        tile = load_rows(part, part_row, places, inside & (other_weight > 0.0), value_columns, VALUE_SIZE, UNIT)
        output += tile * (other_weight / total)[:, None]
    band = band / total[:, None]
    for t in tl.range(0, RADIUS, loop_unroll_factor=UNROLL):
        inside = seen(visible, visible_place, rows - t, keys, HAS_VISIBLE)
        tile = load_rows(v, v_row, rows - t, inside, value_columns, VALUE_SIZE, UNIT)
        output += tile * _column(band, slots, t)[:, None]

    tl.store(lse + index * queries + rows, top + tl.log(total), mask=rows < queries)
    kept, real = places_in_band(weights, index, queries, rows, slots, RADIUS)
    tl.store(kept, band, mask=real)
    out += (batch * out_batch + head * out_head) * UNIT
    mask = (rows < queries)[:, None] & (value_columns < VALUE_SIZE)[None, :]
    places = (rows * out_row * UNIT)[:, None] + value_columns[None, :]
    tl.store(out + places, output.to(out.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=[
        *("stream", "per_group", "heads", "group", "queries", "keys", "visible_batch", "visible_head"),
        *stride_names("grad", "k", "v", "out", "d_q", "part"),
    ]
)
def rows_backward_kernel(
    grad, k, v, out, weights, part, d_q, d_raw, seed, gate, visible, stream, per_group, sigma_min, sigma_span,
    scale, heads, group, queries, keys,
    grad_batch, grad_head, grad_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    out_batch, out_head, out_row, d_q_batch, d_q_head, d_q_row,
    part_batch, part_head, part_row, visible_batch, visible_head, visible_place,
    SAMPLING: tl.constexpr, HAS_GATE: tl.constexpr, HAS_VISIBLE: tl.constexpr, HAS_PART: tl.constexpr,
    RENORMALIZE: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, UNIT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Gradient of the queries, of part and band; also the gradient of the band's raw logits for `keys_backward_kernel`.

    d_raw [B, H, 2r, N] holds the gradient of q_i.k_{i-u} at [u, i].
    """
    RADIUS: tl.constexpr = WIDTH // 2
    index = tl.program_id(0).to(tl.int64)
    batch = index // heads
    head = index % heads
    rows = first_row(BLOCK_N, LONG) + tl.arange(0, BLOCK_N)
    real = rows < queries
    columns = tl.arange(0, BLOCK_D)
    value_columns = tl.arange(0, BLOCK_E)
    slots = tl.arange(0, SLOTS)
    rate, norm = gaussian(
        seed, gate, stream, per_group, batch, head, sigma_min, sigma_span, SAMPLING, HAS_GATE, WIDTH
    )  # fmt: skip
    if HAS_VISIBLE:
        visible += batch * visible_batch + head * visible_head
    k += (batch * k_batch + (head // group) * k_head) * UNIT
    v += (batch * v_batch + (head // group) * v_head) * UNIT
    grad += (batch * grad_batch + head * grad_head) * UNIT
    out += (batch * out_batch + head * out_head) * UNIT

    kept, known = places_in_band(weights, index, queries, rows, slots, RADIUS)
    band = tl.load(kept, mask=known, other=0.0)
    grad_tile = load_rows(grad, grad_row, rows, real, value_columns, VALUE_SIZE, UNIT)
    delta = tl.sum(grad_tile * load_rows(out, out_row, rows, real, value_columns, VALUE_SIZE, UNIT), axis=1)
    d_band = tl.zeros_like(band) - delta[:, None]
    for t in tl.range(0, RADIUS, loop_unroll_factor=UNROLL):
        inside = seen(visible, visible_place, rows - t, keys, HAS_VISIBLE)
        tile = load_rows(v, v_row, rows - t, inside, value_columns, VALUE_SIZE, UNIT)
        d_band += tl.where((slots == t)[None, :], tl.sum(grad_tile * tile, axis=1)[:, None], 0.0)
    d_band *= band
    if RENORMALIZE:
        d_band = d_band / share_in_band(rows, slots, rate, norm, visible, visible_place, keys, RADIUS, HAS_VISIBLE)

    total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    if HAS_PART:
        part += (batch * part_batch + head * part_head) * UNIT
        total += load_rows(part, part_row, rows - RADIUS, real & (rows >= RADIUS), columns, SIZE, UNIT)
    total += gradient_of_queries(
        d_band, d_raw, k, k_row, index, rows, columns, slots, rate, norm, scale, visible, visible_place, queries, keys,
        SIZE, UNIT, RADIUS, HAS_VISIBLE,
    )  # fmt: skip
    d_q += (batch * d_q_batch + head * d_q_head) * UNIT
    places = (rows * d_q_row * UNIT)[:, None] + columns[None, :]
    tl.store(d_q + places, total.to(d_q.dtype.element_ty), mask=real[:, None] & (columns < SIZE)[None, :])


@triton.jit(
    do_not_specialize=[
        *("stream", "per_group", "heads", "queries", "keys", "part_keys", "visible_batch", "visible_head"),
        *stride_names("grad", "q", "d_k", "d_v", "part_k", "part_v"),
    ]
)
def keys_backward_kernel(
    grad, q, part_k, part_v, d_k, d_v, weights, d_raw, seed, gate, visible, stream, per_group, sigma_min, sigma_span,
    heads, queries, keys, part_keys,
    grad_batch, grad_head, grad_row, q_batch, q_head, q_row, d_k_batch, d_k_head, d_k_row,
    d_v_batch, d_v_head, d_v_row, part_k_batch, part_k_head, part_k_row, part_v_batch, part_v_head, part_v_row,
    visible_batch, visible_head, visible_place,
    SAMPLING: tl.constexpr, HAS_GATE: tl.constexpr, HAS_VISIBLE: tl.constexpr, HAS_PART: tl.constexpr,
    GROUP: tl.constexpr, PART_GROUP: tl.constexpr,
    RENORMALIZE: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Gradients of the raw keys and the values of one tile of one key head, of part and band.

    The part gives the gradient of blurred keys. The transposed blur is applied here, so that dk is written and rounded
    once. Every key collects from the rows that used it, so no atomic additions are needed and results are reproducible.
    """
    RADIUS: tl.constexpr = WIDTH // 2
    index = tl.program_id(0).to(tl.int64)
    batch = index // heads
    head = index % heads
    start = first_row(BLOCK_M, LONG)
    places = start + tl.arange(0, BLOCK_M)
    real = places < keys
    columns = tl.arange(0, BLOCK_D)
    value_columns = tl.arange(0, BLOCK_E)
    near_edge = (start < WIDTH) | (start + BLOCK_M + WIDTH > keys)
    k_total = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    v_total = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    if HAS_PART:
        for member in range(PART_GROUP):
            # The part may have one gradient for each query head, or one for all query heads that share a key head. In
            # the second case, these heads have the same blur kernel and visibility.
            part_head = head * PART_GROUP + member
            rate, norm = gaussian(
                seed, gate, stream, per_group, batch, part_head, sigma_min, sigma_span, SAMPLING, HAS_GATE, WIDTH
            )
            part_visible = visible
            if HAS_VISIBLE:
                part_visible = visible + batch * visible_batch + part_head * visible_head
            k_total += blurred_tile(
                part_k + (batch * part_k_batch + part_head * part_k_head) * UNIT, part_k_row, places, columns,
                near_edge, rate, norm, part_visible, visible_place, part_keys, keys, SIZE, UNIT, WIDTH,
                HAS_VISIBLE, RENORMALIZE, True,
            )  # fmt: skip
            values = part_v + (batch * part_v_batch + part_head * part_v_head) * UNIT
            v_total += load_rows(values, part_v_row, places, places < part_keys, value_columns, VALUE_SIZE, UNIT)
    for member in range(GROUP):
        query_head = head * GROUP + member
        line = batch * heads * GROUP + query_head
        queried = q + (batch * q_batch + query_head * q_head) * UNIT
        k_total += gradient_of_keys(d_raw, queried, q_row, line, places, real, columns, queries, SIZE, UNIT, RADIUS)
        received = grad + (batch * grad_batch + query_head * grad_head) * UNIT
        for t in tl.range(0, RADIUS, loop_unroll_factor=UNROLL):
            inside = real & (places + t < queries)
            w = tl.load(weights + (line * RADIUS + t) * queries + places + t, mask=inside, other=0.0)
            v_total += w[:, None] * load_rows(received, grad_row, places + t, inside, value_columns, VALUE_SIZE, UNIT)
    d_k += (batch * d_k_batch + head * d_k_head) * UNIT
    d_v += (batch * d_v_batch + head * d_v_head) * UNIT
    k_places = (places * d_k_row * UNIT)[:, None] + columns[None, :]
    v_places = (places * d_v_row * UNIT)[:, None] + value_columns[None, :]
    tl.store(d_k + k_places, k_total.to(d_k.dtype.element_ty), mask=real[:, None] & (columns < SIZE)[None, :])
    v_mask = real[:, None] & (value_columns < VALUE_SIZE)[None, :]
    tl.store(d_v + v_places, v_total.to(d_v.dtype.element_ty), mask=v_mask)


def merge(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: tuple[Tensor, Tensor] | None,
    out: Tensor,
    lse: Tensor,
    weights: Tensor,
    visible: Tensor | None,
    blur: Blur,
    scale: float,
) -> None:
    """Write output [B, H, N, E], log-sum-exp [B, H, N] and the band's weights [B, H, r, N] of causal blurred attention.

    `part` holds output and log-sum-exp of the rows from r on over the blurred keys j <= i - r (-inf for a row that sees
    none of them). It is None if there are no such keys. k and v are not blurred, and have H or fewer heads. All tensors
    have unit stride along their last dimension.
    """
    if out.numel() == 0:
        lse.zero_()
        weights.zero_()
        return
    part_out, part_lse = (None, None) if part is None else part
    unit, strides = in_units(q, k, v, part_out, out)
    shown, *places = visible_argument(visible)
    tiles, constants = _tiles(q, v, part_out, visible, blur, unit, strides)
    with on_device(q):
        merge_kernel[(q.shape[0] * q.shape[1], triton.cdiv(q.shape[2], tiles))](
            *(q, k, v, part_out, part_lse, out, lse, weights, blur.seed, blur.gate, shown),
            *(*blur.scalars(q.shape[0]), scale, q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2]),
            *(*strides, *((0, 0, 0) if part_lse is None else part_lse.stride()), *places),
            **constants,
            SLOTS=triton.next_power_of_2(max(1, blur.width // 2)),
            BLOCK_N=tiles,
            num_warps=2,
        )


def merge_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    weights: Tensor,
    part: tuple[Tensor, Tensor, Tensor] | None,
    grads: tuple[Tensor, Tensor, Tensor],
    visible: Tensor | None,
    blur: Blur,
    scale: float,
) -> None:
    """Write the gradients of q, k and v into `grads`.

    `part` holds the part's gradients of the rows of q from r on, and of the blurred keys and values j <= N - r, for
    each query head or for each key head. It is None if there is no part.
    """
    (batch, heads, queries, _), (_, key_heads, keys, _) = q.shape, k.shape
    d_q, d_k, d_v = grads
    radius = blur.width // 2
    # 2r numbers for each row, for this call only. With them, the kernel for keys need not compute rows again.
    d_raw = torch.empty(batch, heads, 2 * radius, queries, dtype=torch.float32, device=q.device)
    part_q, part_k, part_v = (None, None, None) if part is None else part
    shown, *places = visible_argument(visible)
    with on_device(q):
        if d_q.numel() > 0:
            unit, strides = in_units(grad, k, v, out, d_q, part_q)
            tiles, constants = _tiles(q, v, part, visible, blur, unit, strides)
            rows_backward_kernel[(batch * heads, triton.cdiv(queries, tiles))](
                *(grad, k, v, out, weights, part_q, d_q, d_raw, blur.seed, blur.gate, shown),
                *(*blur.scalars(batch), scale, heads, heads // key_heads, queries, keys, *strides, *places),
                **constants,
                SLOTS=triton.next_power_of_2(max(1, radius)),
                BLOCK_N=tiles,
                num_warps=2,
            )
        if d_k.numel() > 0:
            unit, strides = in_units(grad, q, d_k, d_v, part_k, part_v)
            tiles, constants = _tiles(k, v, part, visible, blur, unit, strides)
            part_group, part_keys = (1, 0) if part_k is None else (part_k.shape[1] // key_heads, part_k.shape[2])
            keys_backward_kernel[(batch * key_heads, triton.cdiv(keys, tiles))](
                *(grad, q, part_k, part_v, d_k, d_v, weights, d_raw, blur.seed, blur.gate, shown),
                *(*blur.scalars(batch), key_heads, queries, keys, part_keys),
                *(*strides, *places),
                **constants,
                GROUP=heads // key_heads,
                PART_GROUP=part_group,
                BLOCK_M=tiles,
                num_warps=2 if heads == key_heads else 4,
            )


def _tiles(
    x: Tensor, v: Tensor, part: object, visible: Tensor | None, blur: Blur, unit: int, strides: list[int]
) -> tuple[int, dict[str, object]]:
    """How many rows of `x` make a tile, and the constants that all kernels here take."""
    block_d, block_e = triton.next_power_of_2(x.shape[-1]), triton.next_power_of_2(v.shape[-1])
    # 1 K elements: larger tiles, or more warps, were not faster on an H200.
    tiles = tile_rows(x.shape[-2], 1024 // max(block_d, block_e))
    return tiles, {
        "SAMPLING": blur.sampling,
        "HAS_GATE": blur.gate is not None,
        "HAS_VISIBLE": visible is not None,
        "HAS_PART": part is not None,
        "RENORMALIZE": blur.renormalize,
        "WIDTH": blur.width,
        "SIZE": x.shape[-1],
        "VALUE_SIZE": v.shape[-1],
        "UNIT": unit,
        "BLOCK_D": block_d,
        "BLOCK_E": block_e,
        "LONG": (x.shape[-2] + tiles + blur.width) * max(strides[2::3]) * unit >= 2**31,
        **OPTIONS,
    }
