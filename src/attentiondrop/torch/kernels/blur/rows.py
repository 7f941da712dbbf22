# mypy: ignore-errors
"""Blur of rows [B, H, M, D] along M, and its transpose, in one read and one write: Triton.

Each program takes a tile of rows of one head. It computes the weights, which are scalars, from the seed, so no other
kernel runs before it and nothing waits for the device. Narrow blurs work on runs of neighbouring rows: each row is
loaded once and used for the whole run from registers. Loading a tile once for every offset needs many more
instructions, and instructions, not memory, limit the speed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..shared.compiler_options import OPTIONS, stride_names
from ..shared.current_device import on_device
from ..shared.hashing import stream_key, to_uniform, vector_word

#: With larger widths, the rows of a run do not fit into registers.
WIDEST_RUN = 7


@triton.jit
def gaussian(
    seed, gate, stream, per_group, batch, head, sigma_min, sigma_span,
    SAMPLING: tl.constexpr, HAS_GATE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """`rate` and `norm` of the kernel of one head: `G[d] = exp(rate * d^2) * norm`.

    "batch": one sigma for each group of `per_group` samples.
    """
    line = batch // per_group
    if SAMPLING == "sample":
        line = batch
    if SAMPLING == "head":
        line = head
    k0, k1 = stream_key(seed, stream)
    sigma = sigma_min + sigma_span * to_uniform(vector_word(k0, k1, line))
    if HAS_GATE:
        sigma *= tl.load(gate).to(tl.float32)
    # The same floor as in `regularisers.gaussian_kernel`: with it, sigma = 0 is the identity without 0 / 0.
    rate = -0.5 / tl.maximum(sigma * sigma, 1.1754943508222875e-38 * 2 * WIDTH * WIDTH)
    total = rate * 0.0 + 1.0
    if WIDTH <= 15:
        for d in tl.static_range(1, WIDTH // 2 + 1):
            total += 2.0 * tl.exp(rate * (d * d))
    else:
        for d in range(1, WIDTH // 2 + 1):
            total += 2.0 * tl.exp(rate * (d * d))
    return rate, 1.0 / total


@triton.jit
def seen(visible, visible_stride, places, length, HAS_VISIBLE: tl.constexpr):
    """Which places lie inside the sequence and are visible; `visible` points to the first place of its head."""
    inside = (places >= 0) & (places < length)
    if HAS_VISIBLE:
        inside = tl.load(visible + places * visible_stride, mask=inside, other=0) != 0
    return inside


@triton.jit
def first_row(BLOCK: tl.constexpr, LONG: tl.constexpr):
    """The first row of this program's tile. LONG: offsets within a head do not fit into 32 bits."""
    start = tl.program_id(1)
    return start.to(tl.int64) * BLOCK if LONG else start * BLOCK


@triton.jit
def load_raw(x, stride, rows, inside, columns, SIZE: tl.constexpr, UNIT: tl.constexpr):
    """Rows [rows, columns] of a head, zeros where not `inside`. `stride` counts units of UNIT elements."""
    mask = inside[:, None] & (columns < SIZE)[None, :]
    # Multiplying by UNIT shows Triton that addresses are multiples of it. From an argument, Triton only learns about
    # multiples of 16, and would load one element at a time otherwise.
    return tl.load(x + (rows * stride * UNIT)[:, None] + columns[None, :], mask=mask, other=0.0)


@triton.jit
def load_rows(x, stride, rows, inside, columns, SIZE: tl.constexpr, UNIT: tl.constexpr):
    """`load_raw` in float32."""
    return load_raw(x, stride, rows, inside, columns, SIZE, UNIT).to(tl.float32)


@triton.jit
def share_of(
    places, near_edge, rate, norm, visible, visible_stride, length,
    WIDTH: tl.constexpr, HAS_VISIBLE: tl.constexpr,
):  # fmt: skip
    """For each of `places`, the sum of the kernel's weights on visible places; 1 if the place itself is hidden."""
    share = tl.zeros_like(places.to(tl.float32)) + 1.0
    if HAS_VISIBLE or near_edge:
        total = tl.zeros_like(share)
        if WIDTH <= 7:
            for place in tl.static_range(WIDTH):
                d = place - WIDTH // 2
                weight = tl.exp(rate * (d * d)) * norm
                total += tl.where(seen(visible, visible_stride, places + d, length, HAS_VISIBLE), weight, 0.0)
        else:
            for place in range(WIDTH):
                d = place - WIDTH // 2
                weight = tl.exp(rate * (d * d)) * norm
                total += tl.where(seen(visible, visible_stride, places + d, length, HAS_VISIBLE), weight, 0.0)
        share = tl.where(seen(visible, visible_stride, places, length, HAS_VISIBLE), total, 1.0)
    return share


@triton.jit
def _term(
    total, d, x, stride, rows, columns, near_edge, rate, norm, visible, visible_stride, rows_in, length,
    SIZE: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr, HAS_VISIBLE: tl.constexpr,
    RENORMALIZE: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """`total` plus the rows at distance `d`. The kernel is symmetric, so the transpose differs in its factors only."""
    places = rows + d
    weight = tl.exp(rate * (d * d)) * norm
    if TRANSPOSED:
        tile = load_rows(x, stride, places, (places >= 0) & (places < rows_in), columns, SIZE, UNIT)
        if RENORMALIZE:
            share = share_of(places, near_edge, rate, norm, visible, visible_stride, length, WIDTH, HAS_VISIBLE)
            return total + tile * (weight / share)[:, None]
        return total + tile * weight
    # Hidden rows are not read: any value there, even NaN, counts as 0.
    inside = seen(visible, visible_stride, places, rows_in, HAS_VISIBLE)
    return total + load_rows(x, stride, places, inside, columns, SIZE, UNIT) * weight


@triton.jit
def blurred_tile(
    x, stride, rows, columns, near_edge, rate, norm, visible, visible_stride, rows_in, length,
    SIZE: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr, HAS_VISIBLE: tl.constexpr,
    RENORMALIZE: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """The blurred rows of one head, [rows, columns] in float32.

    `x` holds the first `rows_in` rows of a sequence of `length`; those after it count as 0. `near_edge` says whether
    any of `rows` is closer than 2 radii to an end of the sequence.
    """
    total = tl.zeros_like(rows.to(tl.float32))[:, None] + tl.zeros_like(columns.to(tl.float32))[None, :]
    if RENORMALIZE and not TRANSPOSED:
        # This comes before the loads: after them, its branch makes ptxas spill all loaded values.
        share = share_of(rows, near_edge, rate, norm, visible, visible_stride, length, WIDTH, HAS_VISIBLE)
    # The transpose needs a share at every offset. With a wide kernel, unrolling it would spill registers.
    if WIDTH <= 7 or (WIDTH <= 15 and not (TRANSPOSED and RENORMALIZE)):
        for place in tl.static_range(WIDTH):
            total = _term(
                total, place - WIDTH // 2, x, stride, rows, columns, near_edge, rate, norm, visible,
                visible_stride, rows_in, length, SIZE, UNIT, WIDTH, HAS_VISIBLE, RENORMALIZE, TRANSPOSED,
            )  # fmt: skip
    else:
        for place in range(WIDTH):
            total = _term(
                total, place - WIDTH // 2, x, stride, rows, columns, near_edge, rate, norm, visible,
                visible_stride, rows_in, length, SIZE, UNIT, WIDTH, HAS_VISIBLE, RENORMALIZE, TRANSPOSED,
            )  # fmt: skip
    if TRANSPOSED:
        if HAS_VISIBLE:
            total = tl.where(seen(visible, visible_stride, rows, length, HAS_VISIBLE)[:, None], total, 0.0)
    elif RENORMALIZE:
        total = total / share[:, None]
    return total


@triton.jit
def _share_in_run(shown, at: tl.constexpr, rate, norm, WIDTH: tl.constexpr):
    """`share_of` a place from loaded visibilities: `shown[at]` is that of the first place under the kernel."""
    total = tl.zeros_like(shown[at].to(tl.float32))
    for place in tl.static_range(WIDTH):
        d = place - WIDTH // 2
        total += tl.where(shown[at + place], tl.exp(rate * (d * d)) * norm, 0.0)
    return tl.where(shown[at + WIDTH // 2], total, 1.0)


@triton.jit
def _blur_runs(
    x, stride, out, out_stride, first, columns, near_edge, seed, gate, stream, per_group, batch, head, sigma_min,
    sigma_span, visible, visible_stride, rows_in, rows_out, length,
    SAMPLING: tl.constexpr, HAS_GATE: tl.constexpr, SIZE: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VISIBLE: tl.constexpr, RENORMALIZE: tl.constexpr, TRANSPOSED: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Write runs of RUN rows, each starting at one of `first`."""
    RADIUS: tl.constexpr = WIDTH // 2
    # Every place lies under WIDTH kernels. Its visibility is loaded once for all of them: that is less to run, and much
    # less to compile.
    SHARED: tl.constexpr = RENORMALIZE and HAS_VISIBLE
    REACH: tl.constexpr = 2 * RADIUS if TRANSPOSED else RADIUS
    shown = ()
    if SHARED:
        for place in tl.static_range(RUN + 2 * REACH):
            shown = shown + (seen(visible, visible_stride, first + (place - REACH), length, HAS_VISIBLE),)
    tiles = ()
    for place in tl.static_range(RUN + WIDTH - 1):
        rows = first + (place - RADIUS)
        if TRANSPOSED:
            inside = (rows >= 0) & (rows < rows_in)
        elif SHARED:
            inside = shown[place] & (rows < rows_in)
        else:
            # Hidden rows are not read: any value there, even NaN, counts as 0.
            inside = seen(visible, visible_stride, rows, rows_in, HAS_VISIBLE)
        tiles = tiles + (load_raw(x, stride, rows, inside, columns, SIZE, UNIT),)
    # This comes after the loads: the seed is loaded, too, and both loads can run at the same time.
    rate, norm = gaussian(
        seed, gate, stream, per_group, batch, head, sigma_min, sigma_span, SAMPLING, HAS_GATE, WIDTH
    )  # fmt: skip
    terms = ()
    for place in tl.static_range(RUN + WIDTH - 1):
        tile = tiles[place].to(tl.float32)
        if TRANSPOSED and RENORMALIZE:
            if SHARED:
                share = _share_in_run(shown, place, rate, norm, WIDTH)
            else:
                rows = first + (place - RADIUS)
                share = share_of(rows, near_edge, rate, norm, visible, visible_stride, length, WIDTH, HAS_VISIBLE)
            tile = tile / share[:, None]
        terms = terms + (tile,)
    for place in tl.static_range(RUN):
        rows = first + place
        total = terms[place + RADIUS] * norm
        for d in tl.static_range(1, RADIUS + 1):
            total += (terms[place + RADIUS - d] + terms[place + RADIUS + d]) * (tl.exp(rate * (d * d)) * norm)
        if TRANSPOSED:
            if SHARED:
                total = tl.where(shown[place + REACH][:, None], total, 0.0)
            elif HAS_VISIBLE:
                total = tl.where(seen(visible, visible_stride, rows, length, HAS_VISIBLE)[:, None], total, 0.0)
        elif SHARED:
            total = total / _share_in_run(shown, place, rate, norm, WIDTH)[:, None]
        elif RENORMALIZE:
            share = share_of(rows, near_edge, rate, norm, visible, visible_stride, length, WIDTH, HAS_VISIBLE)
            total = total / share[:, None]
        mask = (rows < rows_out)[:, None] & (columns < SIZE)[None, :]
        place_out = out + (rows * out_stride * UNIT)[:, None] + columns[None, :]
        tl.store(place_out, total.to(out.dtype.element_ty), mask=mask)


# Nothing that depends on the sequence length is specialised: a new length must not cause a new compilation.
@triton.jit(
    do_not_specialize=[
        *("stream", "per_group", "heads", "group", "rows_in", "rows_out", "length", "visible_batch", "visible_head"),
        *stride_names("x", "out"),
    ]
)
def blur_kernel(
    x, out, seed, gate, visible, stream, per_group, sigma_min, sigma_span, heads, group, rows_in, rows_out, length,
    x_batch, x_head, x_row, out_batch, out_head, out_row, visible_batch, visible_head, visible_place,
    SAMPLING: tl.constexpr, HAS_GATE: tl.constexpr, HAS_VISIBLE: tl.constexpr, RENORMALIZE: tl.constexpr,
    TRANSPOSED: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, RUN: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one head. Heads are the grid's first axis: heads that are close in memory run together."""
    index = tl.program_id(0)
    batch = (index // heads).to(tl.int64)
    head = (index % heads).to(tl.int64)
    start = first_row(BLOCK_M, LONG)
    columns = tl.arange(0, BLOCK_D)
    near_edge = (start < WIDTH) | (start + BLOCK_M + WIDTH > length)
    x += (batch * x_batch + (head // group) * x_head) * UNIT
    out += (batch * out_batch + head * out_head) * UNIT
    if HAS_VISIBLE:
        visible += batch * visible_batch + head * visible_head
    if RUN > 0:
        _blur_runs(
            x, x_row, out, out_row, start + tl.arange(0, BLOCK_M // RUN) * RUN, columns, near_edge, seed, gate, stream,
            per_group, batch, head, sigma_min, sigma_span, visible, visible_place, rows_in, rows_out, length,
            SAMPLING, HAS_GATE, SIZE, UNIT, WIDTH, HAS_VISIBLE, RENORMALIZE, TRANSPOSED, RUN,
        )  # fmt: skip
    else:
        rows = start + tl.arange(0, BLOCK_M)
        rate, norm = gaussian(
            seed, gate, stream, per_group, batch, head, sigma_min, sigma_span, SAMPLING, HAS_GATE, WIDTH
        )  # fmt: skip
        total = blurred_tile(
            x, x_row, rows, columns, near_edge, rate, norm, visible, visible_place, rows_in, length, SIZE, UNIT, WIDTH,
            HAS_VISIBLE, RENORMALIZE, TRANSPOSED,
        )  # fmt: skip
        mask = (rows < rows_out)[:, None] & (columns < SIZE)[None, :]
        places = (rows * out_row * UNIT)[:, None] + columns[None, :]
        tl.store(out + places, total.to(out.dtype.element_ty), mask=mask)


class Blur(NamedTuple):
    """What determines the weights of the blur and what happens at edges: the arguments of the operators, in order."""

    seed: Tensor
    gate: Tensor | None
    stream: int
    sampling: str
    sigma_min: float
    sigma_max: float
    width: int
    renormalize: bool
    #: Equal parts of the batch, one after the other: with the sampling "batch", each has a sigma of its own.
    groups: int

    def scalars(self, batch: int) -> tuple[int, int, float, float]:
        """`stream, per_group, sigma_min, sigma_span` as the kernels take them."""
        return self.stream, batch // self.groups, self.sigma_min, self.sigma_max - self.sigma_min


def blur_rows(x: Tensor, out: Tensor, length: int, visible: Tensor | None, blur: Blur, transposed: bool) -> None:
    """Write the first rows of a blurred sequence of `length` into `out` [B, H, any, D].

    `x` [B, H or a divisor of it, any, D] holds the first rows of the sequence; the others count as 0. `x` and `out`
    have unit stride along D. `visible` is None or a boolean [B or 1, H or 1, 1, `length`].
    """
    batch, heads, rows, size = out.shape
    if out.numel() == 0:
        return
    unit, strides = in_units(x, out)
    block_d = triton.next_power_of_2(size)
    # With runs: 8 rows, 16 bytes of each in a thread, and 2 warps, which is 8 KB. Without runs: 4 warps for the same
    # size, so that the shifted loads of several offsets fit into registers.
    run = 8 if blur.width <= WIDEST_RUN else 0
    block_m = max(run, tile_rows(rows, 8192 // x.element_size() // block_d))
    reach = max(x.shape[-2], rows) + block_m + blur.width
    shown, *places = visible_argument(visible)
    with on_device(x):
        blur_kernel[(batch * heads, triton.cdiv(rows, block_m))](
            x,
            out,
            blur.seed,
            blur.gate,
            shown,
            *blur.scalars(batch),
            heads,
            heads // x.shape[1],
            x.shape[-2],
            rows,
            length,
            *strides,
            *places,
            SAMPLING=blur.sampling,
            HAS_GATE=blur.gate is not None,
            HAS_VISIBLE=visible is not None,
            RENORMALIZE=blur.renormalize,
            TRANSPOSED=transposed,
            WIDTH=blur.width,
            SIZE=size,
            UNIT=unit,
            BLOCK_M=block_m,
            BLOCK_D=block_d,
            RUN=run,
            LONG=reach * max(strides[2], strides[5], 1) * unit >= 2**31,
            num_warps=2 if run else 4,
            **OPTIONS,
        )


#: CUDA launches at most so many programs along the second axis of a grid, which counts tiles.
MOST_TILES = 65535


def tile_rows(rows: int, most: int) -> int:
    """Rows of a tile: a power of two, at most `most` and 1024, and less than twice `rows`.

    More than `most`, where there would be too many tiles for one launch.
    """
    fewest = triton.next_power_of_2(triton.cdiv(rows, MOST_TILES))
    return max(1, fewest, min(most, 1024, triton.next_power_of_2(rows)))


def in_units(*tensors: Tensor | None) -> tuple[int, list[int]]:
    """The largest unit of up to 8 elements that divides all strides but the last, and those strides in units."""
    # The stride of a dimension of size 1 is never used, so it must not make the unit smaller.
    strides = [0 if x is None or x.shape[d] == 1 else x.stride(d) for x in tensors for d in range(3)]
    unit = next(unit for unit in (8, 4, 2, 1) if all(stride % unit == 0 for stride in strides))
    return unit, [stride // unit for stride in strides]


def visible_argument(visible: Tensor | None) -> tuple[Tensor | None, int, int, int]:
    """Visibility as bytes, with its strides over batch, heads and places; 0 for a dimension of size 1."""
    if visible is None:
        return None, 0, 0, 0
    if visible.shape[3] * visible.stride(3) >= 2**31:
        # A column of a large mask: the kernels count places in 32 bits.
        visible = visible.contiguous()
    strides = [0 if visible.shape[d] == 1 else visible.stride(d) for d in (0, 1, 3)]
    return visible.view(torch.uint8), strides[0], strides[1], strides[2]
