# mypy: ignore-errors
"""Launch the attention kernels: their common arguments, tile sizes, and what the forward keeps for the backward."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ...call.blocks import Blocks
from ...call.decisions import HIDING, Decisions, empty_lse, empty_notes, is_ranked, output_like
from ...call.inputs import laid_out, unit_stride
from ..amend.pick import pick_kernel
from ..amend.recount import recount_kernel
from ..shared.compiler_options import OPTIONS
from ..shared.current_device import on_device
from ..shared.tiles import Tiles, backward_tiles, forward_tiles, select_tiles
from .backward_keys import key_kernel
from .backward_queries import query_kernel
from .forward import forward_kernel
from .select_largest import select_kernel
from .word_tables import Tables, make_tables

LOG2E = math.log2(math.e)
#: Enough programs to keep a large device busy.
PROGRAMS = 2048
#: From this k on, the k-th largest is found bit by bit.
BISECT_FROM = 65


class Notes(NamedTuple):
    """What the forward keeps for the backward beside the log-sum-exp; each [B, H, N], or empty if not needed.

    low, high, cut: see `logits.is_dropped`; keep: the key that an emptied row keeps, or -1;
    tied [B, H]: whether the head has a row whose k-th and next logit are equal;
    growth: what kept weights are multiplied by, if each row is divided by the share of its sum that is left.
    """

    low: Tensor
    high: Tensor
    cut: Tensor
    keep: Tensor
    tied: Tensor
    growth: Tensor


class Listed(NamedTuple):
    """A list of rows for each head: `rows` [B, H, N], of which the first `counts` [B, H] are valid."""

    rows: Tensor
    counts: Tensor


def empty_lists(q: Tensor, number: int) -> list[Listed]:
    """Lists with no rows, for kernels to fill."""
    counts = q.new_zeros(number, *q.shape[:2], dtype=torch.int32)
    return [Listed(q.new_empty(q.shape[:-1], dtype=torch.int32), count) for count in counts]


def forward(q: Tensor, k: Tensor, v: Tensor, call: Decisions) -> tuple[Tensor, Tensor, Notes]:
    """Output [B, H, N, E], its log-sum-exp (see `empty_lse`), and the notes."""
    q, k, v = (unit_stride(x) for x in (q, k, v))
    output = output_like(q, v)
    lse = empty_lse(q)
    notes = Notes(*empty_notes(q, k, call.drop, call.top, call.dropout.by_share))
    if output.numel() == 0:
        return output, lse, notes
    if k.shape[2] == 0:
        return output.zero_(), lse.zero_(), notes
    with on_device(q):
        tables = make_tables(q, k.shape[2], call)
        common = common_arguments(q, k, call)
        if is_ranked(call.drop, call.top, k.shape[2]):
            run_select(q, k, call, tables, notes, common, select_tiles(q, k, call.top))
        flags = common.flags
        is_lean = not (flags["HAS_VISIBLE"] or flags["HAS_BIAS"] or flags["NOISE"] or flags["WINDOW"] or flags["SIDE"])
        run_forward(q, k, v, output, lse, call, tables, notes, common, forward_tiles(q, k, v, is_lean))
    return output, lse, notes


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, notes: Notes, call: Decisions
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, in their dtypes and memory orders."""
    told = [torch.empty_like(x) for x in (q, k, v)]
    # The kernels write numbers of a row one after the other, which is not the order of inputs that were transposed.
    d_q, d_k, d_v = (x if x.stride(-1) == 1 else x.new_empty(x.shape) for x in told)
    grad, q, k, v, output = (unit_stride(x) for x in (grad, q, k, v, output))
    if output.numel() == 0 or k.shape[2] == 0:
        return told[0].zero_(), told[1].zero_(), told[2].zero_()
    delta = q.new_empty(q.shape[:-1], dtype=torch.float32)
    with on_device(q):
        # Compute the words again: that is cheaper than keeping them.
        tables = make_tables(q, k.shape[2], call)
        common = common_arguments(q, k, call)
        for_queries, for_keys = backward_tiles(q, k, v)
        run_query(grad, q, k, v, output, lse, delta, d_q, call, tables, notes, common, for_queries)
        run_key(grad, q, k, v, lse, delta, d_k, d_v, call, tables, notes, common, for_keys)
    return laid_out(d_q, told[0]), laid_out(d_k, told[1]), laid_out(d_v, told[2])


def run_select(q, k, call: Decisions, tables: Tables, notes: Notes, common: Common, tiles: Tiles) -> None:
    """The sweep of hard masking that fills `notes.low`, `high`, `cut` and `tied`."""
    notes.tied.zero_()
    select_kernel[_grid(q, tiles.rows)](
        q,
        k,
        *common.masks,
        tables.words,
        tables.factors,
        notes.low,
        notes.high,
        notes.cut,
        notes.tied,
        *strides(q, k),
        *common.mask_strides,
        call.scale * LOG2E,
        *_sizes(q, k, q.shape[1]),
        *common.local,
        call.top,
        D=q.shape[-1],
        BLOCK_D=block(q),
        BM=tiles.rows,
        BN=tiles.columns,
        # k + 1, if depth allows: a slot that holds all of the k largest then also shows the next one.
        DEPTH=min(tiles.depth, call.top + 1),
        TOP=call.top if call.top <= 8 else 0,
        RAW=call.bias is None and call.streams[0] < 0 and call.scale > 0,
        BISECT=call.top >= BISECT_FROM,
        CAUSAL=common.flags["CAUSAL"],
        HAS_VISIBLE=call.visible is not None,
        HAS_BIAS=call.bias is not None,
        FAR=common.flags["FAR"],
        NOISE=call.streams[0] >= 0,
        WINDOW=common.flags["WINDOW"],
        SIDE=common.flags["SIDE"],
        STAGES=tiles.stages,
        num_warps=tiles.warps,
        **OPTIONS,
    )


def run_pick(q, k, call: Decisions, tables: Tables, notes: Notes, lost: Tensor, tiles: Tiles, again: Tiles) -> None:
    """Fill `notes.low`, `high` and `cut`, and `lost` [B, H, N, k] with the dropped keys, followed by -1.

    For hard masking without other stages and without masks. `again`: tiles for doubtful rows.
    """
    (listed,) = empty_lists(q, 1)
    arguments = (
        q,
        k,
        tables.words,
        tables.limits,
        notes.low,
        notes.high,
        notes.cut,
        lost,
        *listed,
        *strides(q, k),
        call.scale * LOG2E,
        *_sizes(q, k, q.shape[1]),
    )
    constants = {"D": q.shape[-1], "BLOCK_D": block(q), "TOP": call.top, "CAUSAL": call.is_causal, **OPTIONS}
    pick_kernel[_grid(q, tiles.rows)](
        *arguments,
        BM=tiles.rows,
        BN=tiles.columns,
        DEPTH=min(tiles.depth, call.top + 1),
        # Only a few values, so that few kernels serve all lengths.
        CODE_BITS=next(bits for bits in (8, 10, 12, 16) if triton.cdiv(k.shape[2], tiles.columns) <= 1 << bits),
        STAGES=tiles.stages,
        # The interpreter cannot run assembler.
        ASM=not triton.knobs.runtime.interpret,
        WIDTH=triton.next_power_of_2(call.top + 1),
        num_warps=tiles.warps,
        **constants,
    )
    heads = q.shape[0] * q.shape[1]
    # Usually few rows are doubtful: launch enough programs to fill a device, not one for every possible tile.
    parts = min(triton.cdiv(q.shape[2], again.rows), triton.cdiv(PROGRAMS, heads))
    recount_kernel[(parts * heads,)](
        *arguments, parts, BM=again.rows, BN=again.columns, num_warps=again.warps, **constants
    )


def run_forward(
    q, k, v, output, lse, call: Decisions, tables: Tables, notes: Notes, common: Common, tiles: Tiles, listed=None
) -> None:
    """The sweep that writes `output`, `lse`, `notes.keep` and `notes.growth`, of all rows or of the listed ones."""
    arguments = (
        q,
        k,
        v,
        output,
        lse,
        *common.masks,
        *tables,
        *notes,
        *(listed or (notes.tied, notes.tied)),
        *strides(q, k, v, output),
        *common.mask_strides,
        call.scale * LOG2E,
        *_sizes(q, k, q.shape[1]),
        *common.local,
    )
    flags = common.flags
    changed = flags["HAS_BIAS"] or flags["NOISE"] or flags["DROP"] or flags["DROPOUT_A"] == "share"
    # Images often have one token more than whole tiles. (Two values, so that few kernels serve all lengths.)
    is_local = flags["CAUSAL"] or flags["WINDOW"] or flags["SIDE"] > 0
    last = 16 if not is_local and 0 < k.shape[2] % tiles.columns <= 16 else tiles.columns
    constants = _constants(q, v, common, tiles, listed) | {"RAW": not changed and call.scale > 0, "LAST": last}
    _run_variants(forward_kernel, _grid(q, tiles.rows), arguments, constants)


def run_query(
    grad, q, k, v, output, lse, delta, d_q, call: Decisions, tables: Tables, notes: Notes, common: Common, tiles: Tiles,
    listed=None,
) -> None:  # fmt: skip
    """The sweep that writes `delta` and the gradient of the queries, of all rows or of the listed ones."""
    arguments = (
        q,
        k,
        v,
        output,
        grad,
        lse,
        delta,
        d_q,
        *common.masks,
        *tables,
        *notes,
        *(listed or (notes.tied, notes.tied)),
        *strides(q, k, v, output, grad, d_q),
        *common.mask_strides,
        call.scale * LOG2E,
        call.scale,
        *_sizes(q, k, q.shape[1]),
        *common.local,
    )
    _run_variants(query_kernel, _grid(q, tiles.rows), arguments, _constants(q, v, common, tiles, listed))


def run_key(
    grad, q, k, v, lse, delta, d_k, d_v, call: Decisions, tables: Tables, notes: Notes, common: Common, tiles: Tiles,
    listed=None,
) -> None:  # fmt: skip
    """The sweep that writes the gradients of keys and values, or adds the contribution of listed rows to them."""
    arguments = (
        q,
        k,
        v,
        grad,
        lse,
        delta,
        d_k,
        d_v,
        *common.masks,
        *tables,
        *notes,
        *(listed or (notes.tied, notes.tied)),
        *strides(q, k, v, grad, d_k, d_v),
        *common.mask_strides,
        call.scale * LOG2E,
        call.scale,
        *_sizes(q, k, k.shape[1]),
        *common.local_of_keys,
    )
    whole = q.shape[2] >= tiles.rows and listed is None and common.flags["SIDE"] == 0
    constants = _constants(q, v, common, tiles, listed) | {"WHOLE": whole}
    _run_variants(key_kernel, _grid(k, tiles.columns), arguments, constants)


def _run_variants(kernel, grid: tuple[int], arguments: tuple, constants: dict) -> None:
    """Launch a kernel; if logits are ranked, once for heads without ties and once for heads with ties.

    Ties need a further comparison at each logit, and are rare. Only the device knows which heads have ties, so each
    launch skips the other's heads there. Listed rows are few: they get one launch, with that comparison.
    """
    variants = (constants["RANKED"],) if constants["LISTED"] else (False, True) if constants["RANKED"] else (False,)
    for ties in variants:
        kernel[grid](*arguments, TIES=ties, **constants)


def _grid(x: Tensor, tile: int) -> tuple[int]:
    """One program for each tile of positions of each head."""
    return (triton.cdiv(x.shape[2], tile) * x.shape[0] * x.shape[1],)


def strides(*tensors: Tensor) -> list[int]:
    """The strides of batch, head and position; the last dimension has stride 1."""
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


def _sizes(q: Tensor, k: Tensor, heads: int) -> tuple[int, ...]:
    """Heads (as the kernel counts them), query heads per key head, rows, keys, and rows of all heads together."""
    return heads, q.shape[1] // k.shape[1], q.shape[2], k.shape[2], q.shape[0] * q.shape[1] * q.shape[2]


def _constants(q: Tensor, v: Tensor, common: Common, tiles: Tiles, listed: Listed | None) -> dict:
    """The compile-time constants of a kernel."""
    return {
        "D": q.shape[-1],
        "E": v.shape[-1],
        "BLOCK_D": block(q),
        "BLOCK_E": block(v),
        "BM": tiles.rows,
        "BN": tiles.columns,
        "LISTED": listed is not None,
        "STAGES": tiles.stages,
        "num_warps": tiles.warps,
        **({"maxnreg": tiles.registers} if tiles.registers else {}),
        **common.flags,
        **OPTIONS,
    }


class Common(NamedTuple):
    """Arguments of every attention kernel: masks (any tensor if there is none), their strides, flags of the variant."""

    masks: tuple[Tensor, Tensor]
    mask_strides: tuple[int, ...]
    flags: dict[str, bool | str | int]
    #: Windows and blocks, for kernels that go through the keys of some rows, and through the rows of some keys.
    local: tuple[Tensor | int, ...]
    local_of_keys: tuple[Tensor | int, ...]


def common_arguments(q: Tensor, k: Tensor, call: Decisions) -> Common:
    """The same for all kernels of a call."""
    masks, strides, far = [], [], False
    for mask in (call.visible, call.bias):
        if mask is None:
            masks.append(q)
            strides += [0, 0, 0, 0]
        else:
            # An expanded view has stride 0 where one entry serves a whole dimension.
            mask = mask.expand(*q.shape[:3], k.shape[2])
            masks.append(mask.view(torch.uint8) if mask.dtype == torch.bool else mask)
            strides += mask.stride()
            far |= sum(step * (size - 1) for step, size in zip(mask.stride()[2:], mask.shape[2:], strict=True)) >= 2**31
    is_local = call.window is not None or call.blocks is not None
    # Among windows and blocks, causality is a window without a right side.
    left, right = call.window or (q.shape[2] + k.shape[2], k.shape[2])
    flags = {
        "CAUSAL": call.is_causal and not is_local,
        "WINDOW": call.window is not None or (call.is_causal and is_local),
        "SIDE": 0 if call.blocks is None else call.blocks.size,
        "HAS_VISIBLE": call.visible is not None,
        "HAS_BIAS": call.bias is not None,
        "FAR": far,
        "NOISE": call.streams[0] >= 0,
        "DROP": "hide" if call.drop in HIDING else call.drop,
        "RANKED": is_ranked(call.drop, call.top, k.shape[2]),
        "DROPOUT_A": "" if call.streams[2] < 0 else "share" if call.dropout.by_share else "scale",
        "DROPOUT_B": call.streams[3] >= 0,
    }
    window = left, min(right, 0) if call.is_causal else right
    local = [_local(q, call.blocks, of_keys) + window for of_keys in (False, True)]
    return Common(tuple(masks), tuple(strides), flags, *local)


def _local(q: Tensor, blocks: Blocks | None, of_keys: bool) -> tuple[Tensor | int, ...]:
    """The states of all pairs of blocks, the lists of blocks to visit with their lengths, the patterns, and strides."""
    if blocks is None:
        return q, q, q, q, 0, 0, 0, 0
    states = blocks.states.contiguous()
    hidden = (states.transpose(-1, -2) if of_keys else states) == 0
    lists = hidden.to(torch.uint8).argsort(dim=-1, stable=True).to(torch.int32).contiguous()
    lengths = (~hidden).sum(dim=-1, dtype=torch.int32)
    patterns = states if blocks.patterns is None else blocks.patterns.contiguous().view(torch.uint8)
    # One table may serve all samples, or all heads.
    shared = [0 if x.shape[dim] == 1 else x.stride(dim) for x in (lists, lengths) for dim in (0, 1)]
    return states, lists, lengths, patterns, *shared


def block(x: Tensor) -> int:
    """The head size inside the kernels: matrix units need a power of two of at least 16."""
    return max(16, triton.next_power_of_2(x.shape[-1]))
