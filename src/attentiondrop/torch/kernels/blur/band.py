# mypy: ignore-errors
"""The diagonals where a causal mask truncates the blur, the *band*: its logits, and where their gradients go. Triton.

For row i and key j = i - t, t = 0..r-1, the blurred logit is `sum_u G[t - u] * raw_u`, where raw_u is the raw logit of
key i - u, u = 0..2r-1. A tile of rows holds the band as [rows, SLOTS]; SLOTS is r rounded up to a power of two.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..shared.compiler_options import OPTIONS, stride_names
from ..shared.current_device import on_device
from .rows import Blur, first_row, gaussian, in_units, load_rows, seen, tile_rows, visible_argument

# With the usual width of 5, all loads are in flight at once. With larger widths, registers do not spill.
UNROLL = tl.constexpr(4)


@triton.jit
def gains(slots, u, rate, norm, RADIUS: tl.constexpr):
    """The weight of the raw diagonal `u` in each slot."""
    offsets = (slots - u).to(tl.float32)
    used = (tl.abs(offsets) <= RADIUS) & (slots < RADIUS)
    return tl.where(used, tl.exp(rate * offsets * offsets) * norm, 0.0)


@triton.jit
def places_in_band(band, index, queries, rows, slots, RADIUS: tl.constexpr):
    """The addresses of the numbers of a band [B, H, r, N], and a mask of those that exist."""
    lines = band + (index * RADIUS + slots) * queries
    return lines[None, :] + rows[:, None], (rows < queries)[:, None] & (slots < RADIUS)[None, :]


@triton.jit
def share_in_band(
    rows, slots, rate, norm, visible, visible_place, keys, RADIUS: tl.constexpr, HAS_VISIBLE: tl.constexpr
):  # fmt: skip
    """For each key of the band, the sum of the kernel's weights on keys that the row sees: [rows, slots], never 0."""
    share = tl.zeros_like(rows.to(tl.float32))[:, None] + tl.zeros_like(slots.to(tl.float32))[None, :]
    for u in tl.range(0, 2 * RADIUS, loop_unroll_factor=UNROLL):
        inside = seen(visible, visible_place, rows - u, keys, HAS_VISIBLE)
        share += tl.where(inside, 1.0, 0.0)[:, None] * gains(slots, u, rate, norm, RADIUS)[None, :]
    return tl.where(share > 0.0, share, 1.0)


@triton.jit
def band_of(
    q_tile, k, k_row, rows, columns, slots, rate, norm, visible, visible_place, keys,
    SIZE: tl.constexpr, UNIT: tl.constexpr, RADIUS: tl.constexpr, HAS_VISIBLE: tl.constexpr,
    RENORMALIZE: tl.constexpr,
):  # fmt: skip
    """Blurred logits [rows, slots] from scaled queries, -inf where the key is hidden."""
    band = tl.zeros_like(rows.to(tl.float32))[:, None] + tl.zeros_like(slots.to(tl.float32))[None, :]
    for u in tl.range(0, 2 * RADIUS, loop_unroll_factor=UNROLL):
        inside = seen(visible, visible_place, rows - u, keys, HAS_VISIBLE)
        raw = tl.sum(q_tile * load_rows(k, k_row, rows - u, inside, columns, SIZE, UNIT), axis=1)
        band += raw[:, None] * gains(slots, u, rate, norm, RADIUS)[None, :]
    if RENORMALIZE:
        band = band / share_in_band(rows, slots, rate, norm, visible, visible_place, keys, RADIUS, HAS_VISIBLE)
    shown = seen(visible, visible_place, rows[:, None] - slots[None, :], keys, HAS_VISIBLE) & (slots < RADIUS)[None, :]
    return tl.where(shown, band, float("-inf"))


@triton.jit
def gradient_of_queries(
    d_band, d_raw, k, k_row, index, rows, columns, slots, rate, norm, scale, visible, visible_place, queries, keys,
    SIZE: tl.constexpr, UNIT: tl.constexpr, RADIUS: tl.constexpr, HAS_VISIBLE: tl.constexpr,
):  # fmt: skip
    """What the band adds to the gradient of a tile of queries. Also writes the gradients of its raw logits.

    `d_band` [rows, slots] is already divided by its share. d_raw [B, H, 2r, N] gets the gradient of q_i.k_{i-u} at
    [u, i].
    """
    total = tl.zeros_like(rows.to(tl.float32))[:, None] + tl.zeros_like(columns.to(tl.float32))[None, :]
    for u in tl.range(0, 2 * RADIUS, loop_unroll_factor=UNROLL):
        inside = seen(visible, visible_place, rows - u, keys, HAS_VISIBLE)
        d = tl.sum(d_band * gains(slots, u, rate, norm, RADIUS)[None, :], axis=1) * scale
        d = tl.where(inside, d, 0.0)
        tl.store(d_raw + (index * (2 * RADIUS) + u) * queries + rows, d, mask=rows < queries)
        total += d[:, None] * load_rows(k, k_row, rows - u, inside, columns, SIZE, UNIT)
    return total


@triton.jit
def gradient_of_keys(
    d_raw, q, q_row, line, places, real, columns, queries, SIZE: tl.constexpr, UNIT: tl.constexpr, RADIUS: tl.constexpr
):  # fmt: skip
    """What the band of the query head `line` adds to the gradient of a tile of keys."""
    total = tl.zeros_like(places.to(tl.float32))[:, None] + tl.zeros_like(columns.to(tl.float32))[None, :]
    for u in tl.range(0, 2 * RADIUS, loop_unroll_factor=UNROLL):
        inside = real & (places + u < queries)
        d = tl.load(d_raw + (line * (2 * RADIUS) + u) * queries + places + u, mask=inside, other=0.0)
        total += d[:, None] * load_rows(q, q_row, places + u, inside, columns, SIZE, UNIT)
    return total


@triton.jit(
    do_not_specialize=[
        *("stream", "per_group", "heads", "group", "queries", "keys", "visible_batch", "visible_head"),
        *stride_names("q", "k"),
    ]
)
def band_kernel(
    q, k, band, seed, gate, visible, stream, per_group, sigma_min, sigma_span, scale, heads, group, queries, keys,
    q_batch, q_head, q_row, k_batch, k_head, k_row, visible_batch, visible_head, visible_place,
    SAMPLING: tl.constexpr, HAS_GATE: tl.constexpr, HAS_VISIBLE: tl.constexpr, RENORMALIZE: tl.constexpr,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, SIZE: tl.constexpr, UNIT: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """The logits of one tile of rows of one head: [B, H, r, N], that of key i - t at [t, i]."""
    RADIUS: tl.constexpr = WIDTH // 2
    index = tl.program_id(0).to(tl.int64)
    batch = index // heads
    head = index % heads
    rows = first_row(BLOCK, LONG) + tl.arange(0, BLOCK)
    columns = tl.arange(0, BLOCK_D)
    slots = tl.arange(0, SLOTS)
    rate, norm = gaussian(
        seed, gate, stream, per_group, batch, head, sigma_min, sigma_span, SAMPLING, HAS_GATE, WIDTH
    )  # fmt: skip
    if HAS_VISIBLE:
        visible += batch * visible_batch + head * visible_head
    q += (batch * q_batch + head * q_head) * UNIT
    k += (batch * k_batch + (head // group) * k_head) * UNIT
    q_tile = load_rows(q, q_row, rows, rows < queries, columns, SIZE, UNIT) * scale
    found = band_of(
        q_tile, k, k_row, rows, columns, slots, rate, norm, visible, visible_place, keys, SIZE, UNIT, RADIUS,
        HAS_VISIBLE, RENORMALIZE,
    )  # fmt: skip
    places, real = places_in_band(band, index, queries, rows, slots, RADIUS)
    tl.store(places, found, mask=real)


@triton.jit(
    do_not_specialize=[
        *("stream", "per_group", "heads", "group", "queries", "keys", "visible_batch", "visible_head"),
        *stride_names("k", "d_q"),
    ]
)
def band_queries_kernel(
    d_band, d_raw, k, d_q, seed, gate, visible, stream, per_group, sigma_min, sigma_span, scale, heads, group, queries,
    keys,
    k_batch, k_head, k_row, d_q_batch, d_q_head, d_q_row, visible_batch, visible_head, visible_place,
    SAMPLING: tl.constexpr, HAS_GATE: tl.constexpr, HAS_VISIBLE: tl.constexpr, RENORMALIZE: tl.constexpr,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, SIZE: tl.constexpr, UNIT: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Add to the gradients of one tile of queries, and write those of the raw logits."""
    RADIUS: tl.constexpr = WIDTH // 2
    index = tl.program_id(0).to(tl.int64)
    batch = index // heads
    head = index % heads
    rows = first_row(BLOCK, LONG) + tl.arange(0, BLOCK)
    columns = tl.arange(0, BLOCK_D)
    slots = tl.arange(0, SLOTS)
    rate, norm = gaussian(
        seed, gate, stream, per_group, batch, head, sigma_min, sigma_span, SAMPLING, HAS_GATE, WIDTH
    )  # fmt: skip
    if HAS_VISIBLE:
        visible += batch * visible_batch + head * visible_head
    k += (batch * k_batch + (head // group) * k_head) * UNIT
    d_q += (batch * d_q_batch + head * d_q_head) * UNIT
    places, real = places_in_band(d_band, index, queries, rows, slots, RADIUS)
    # Beyond the first and the last key, nobody has written a gradient.
    at = rows[:, None] - slots[None, :]
    gradient = tl.load(places, mask=real & (at >= 0) & (at < keys), other=0.0)
    if RENORMALIZE:
        gradient = gradient / share_in_band(rows, slots, rate, norm, visible, visible_place, keys, RADIUS, HAS_VISIBLE)
    total = load_rows(d_q, d_q_row, rows, rows < queries, columns, SIZE, UNIT)
    total += gradient_of_queries(
        gradient, d_raw, k, k_row, index, rows, columns, slots, rate, norm, scale, visible, visible_place, queries,
        keys, SIZE, UNIT, RADIUS, HAS_VISIBLE,
    )  # fmt: skip
    to = (rows * d_q_row * UNIT)[:, None] + columns[None, :]
    tl.store(d_q + to, total.to(d_q.dtype.element_ty), mask=(rows < queries)[:, None] & (columns < SIZE)[None, :])


@triton.jit(do_not_specialize=["heads", "queries", "keys", *stride_names("q", "d_k")])
def band_keys_kernel(
    d_raw, q, d_k, heads, queries, keys, q_batch, q_head, q_row, d_k_batch, d_k_head, d_k_row,
    GROUP: tl.constexpr, RADIUS: tl.constexpr, SIZE: tl.constexpr, UNIT: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Add to the gradients of one tile of keys of one key head. Every key collects from its rows, without atomics."""
    index = tl.program_id(0).to(tl.int64)
    batch = index // heads
    head = index % heads
    places = first_row(BLOCK, LONG) + tl.arange(0, BLOCK)
    real = places < keys
    columns = tl.arange(0, BLOCK_D)
    d_k += (batch * d_k_batch + head * d_k_head) * UNIT
    total = load_rows(d_k, d_k_row, places, real, columns, SIZE, UNIT)
    for member in range(GROUP):
        query_head = head * GROUP + member
        queried = q + (batch * q_batch + query_head * q_head) * UNIT
        line = batch * heads * GROUP + query_head
        total += gradient_of_keys(d_raw, queried, q_row, line, places, real, columns, queries, SIZE, UNIT, RADIUS)
    to = (places * d_k_row * UNIT)[:, None] + columns[None, :]
    tl.store(d_k + to, total.to(d_k.dtype.element_ty), mask=real[:, None] & (columns < SIZE)[None, :])


def band_logits(q: Tensor, k: Tensor, band: Tensor, visible: Tensor | None, blur: Blur, scale: float) -> None:
    """Write the logits of the band [B, H, r, N] in float32: that of row i and key i - t at [t, i], -inf if hidden.

    Queries and keys have unit stride along their last dimension; keys have H heads or a divisor of it.
    """
    unit, strides = in_units(q, k)
    shown, *places = visible_argument(visible)
    tile, constants = _tile(q, visible, blur, unit, strides)
    with on_device(q):
        band_kernel[(q.shape[0] * q.shape[1], triton.cdiv(q.shape[2], tile))](
            *(q, k, band, blur.seed, blur.gate, shown, *blur.scalars(q.shape[0]), scale),
            *(q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], *strides, *places),
            **constants,
        )


def add_band_gradients(
    d_band: Tensor, q: Tensor, k: Tensor, grads: tuple[Tensor, Tensor], visible: Tensor | None, blur: Blur, scale: float
) -> None:
    """Add what the gradients of the band [B, H, r, N] give to those of queries and keys, `grads`."""
    (batch, heads, queries, _), (_, key_heads, keys, _) = q.shape, k.shape
    d_q, d_k = grads
    # 2r numbers for each row, for this call only. With them, the kernel for keys need not compute rows again.
    d_raw = torch.empty(batch, heads, 2 * (blur.width // 2), queries, dtype=torch.float32, device=q.device)
    shown, *places = visible_argument(visible)
    with on_device(q):
        unit, strides = in_units(k, d_q)
        tile, constants = _tile(q, visible, blur, unit, strides)
        band_queries_kernel[(batch * heads, triton.cdiv(queries, tile))](
            *(d_band, d_raw, k, d_q, blur.seed, blur.gate, shown, *blur.scalars(batch), scale),
            *(heads, heads // key_heads, queries, keys, *strides, *places),
            **constants,
        )
        unit, strides = in_units(q, d_k)
        tile, constants = _tile(k, visible, blur, unit, strides)
        shared = ("SIZE", "UNIT", "BLOCK", "BLOCK_D", "LONG", "num_warps")
        band_keys_kernel[(batch * key_heads, triton.cdiv(keys, tile))](
            *(d_raw, q, d_k, key_heads, queries, keys, *strides),
            GROUP=heads // key_heads,
            RADIUS=blur.width // 2,
            **{name: constants[name] for name in shared},
            **OPTIONS,
        )


def _tile(
    x: Tensor, visible: Tensor | None, blur: Blur, unit: int, strides: list[int]
) -> tuple[int, dict[str, object]]:
    """How many rows of `x` make a tile, and the constants of the kernels."""
    block_d = triton.next_power_of_2(x.shape[-1])
    tile = tile_rows(x.shape[-2], 1024 // block_d)
    return tile, {
        "SAMPLING": blur.sampling,
        "HAS_GATE": blur.gate is not None,
        "HAS_VISIBLE": visible is not None,
        "RENORMALIZE": blur.renormalize,
        "WIDTH": blur.width,
        "SLOTS": triton.next_power_of_2(max(1, blur.width // 2)),
        "SIZE": x.shape[-1],
        "UNIT": unit,
        "BLOCK": tile,
        "BLOCK_D": block_d,
        "LONG": (x.shape[-2] + tile + blur.width) * max(strides[2::3]) * unit >= 2**31,
        "num_warps": 2,
        **OPTIONS,
    }
