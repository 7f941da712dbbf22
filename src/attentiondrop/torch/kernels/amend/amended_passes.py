# mypy: ignore-errors
"""Launch hard masking on top of torch's own attention. `correct_rows` explains what is computed."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ...call.decisions import Decisions, empty_lse, empty_notes
from ...call.inputs import laid_out, unit_stride
from .. import library_attention
from ..decide.launch import (
    Listed,
    Notes,
    block,
    common_arguments,
    empty_lists,
    make_tables,
    run_forward,
    run_key,
    run_pick,
    run_query,
    strides,
)
from ..shared.compiler_options import OPTIONS
from ..shared.current_device import on_device
from ..shared.tiles import amend_tiles, listed_tiles, pick_tiles
from .correct_rows import (
    amend_keys_kernel,
    amend_output_kernel,
    amend_queries_kernel,
    list_rows_kernel,
    sort_lost_kernel,
)


def forward(q: Tensor, k: Tensor, v: Tensor, call: Decisions, kind: str) -> tuple[Tensor, ...]:
    """Output, log-sum-exp in the form of torch's kernel, log-sum-exp of listed rows, lost keys, and their notes.

    Listed rows have +inf in the first log-sum-exp; their values are in the second one (see `empty_lse`). The lost keys
    [B, H, N, k] are those of amended rows, followed by -1.
    """
    q, k, v = (unit_stride(x) for x in (q, k, v))
    output, lse = library_attention.forward(kind, q, k, v, call.is_causal, call.scale)
    output, lse = laid_out(output, torch.empty_like(q, device="meta")), lse.contiguous()
    listed_lse = empty_lse(q).zero_()
    lost = q.new_empty(*q.shape[:-1], call.top, dtype=torch.int32)
    notes = Notes(*empty_notes(q, k, call.drop, call.top))
    with on_device(q):
        tables = make_tables(q, k.shape[2], call)
        common = common_arguments(q, k, call)
        run_pick(q, k, call, tables, notes, lost, *pick_tiles(q, k))
        tiles = amend_tiles()
        touched, listed = list_rows(lost, lse, q)
        notes.keep.fill_(-1)
        amend_output_kernel[(triton.cdiv(q.shape[2], tiles.rows) * q.shape[0] * q.shape[1],)](
            q,
            k,
            v,
            output,
            lse,
            lost,
            *touched,
            *listed,
            *strides(q, k, v, output),
            call.scale,
            q.shape[1],
            q.shape[1] // k.shape[1],
            q.shape[2],
            **_sizes(q, v, call),
            BM=tiles.rows,
            ZERO=call.drop == "zero",
            num_warps=tiles.warps,
            **OPTIONS,
        )
        run_forward(q, k, v, output, listed_lse, call, tables, notes, common, listed_tiles(q)[0], listed)
    return output, lse, listed_lse, lost, *notes[:4]


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    lse: Tensor,
    listed_lse: Tensor,
    lost: Tensor,
    notes: Notes,
    call: Decisions,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, in their memory orders."""
    told = [torch.empty_like(x, device="meta") for x in (q, k, v)]
    grad, q, k, v, output = (unit_stride(x) for x in (grad, q, k, v, output))
    found = library_attention.backward(kind, grad, q, k, v, output, lse, call.is_causal, call.scale)
    d_q, d_k, d_v = (unit_stride(x) for x in found)
    delta = q.new_empty(q.shape[:-1], dtype=torch.float32)
    with on_device(q):
        listed = _amend_gradients(grad, q, k, v, output, lse, lost, (d_q, d_k, d_v), call)
        tables = make_tables(q, k.shape[2], call)
        common = common_arguments(q, k, call)
        for_queries, for_keys = listed_tiles(q)
        shared = (call, tables, notes, common)
        run_query(grad, q, k, v, output, listed_lse, delta, d_q, *shared, for_queries, listed)
        run_key(grad, q, k, v, listed_lse, delta, d_k, d_v, *shared, for_keys, listed)
    return laid_out(d_q, told[0]), laid_out(d_k, told[1]), laid_out(d_v, told[2])


def list_rows(lost: Tensor, lse: Tensor, q: Tensor) -> tuple[Listed, Listed]:
    """The rows that lost keys, and the rows that the kernels of `decide` compute."""
    touched, left = empty_lists(q, 2)
    heads, rows = q.shape[0] * q.shape[1], q.shape[2]
    block = min(1024, triton.next_power_of_2(rows))
    list_rows_kernel[(triton.cdiv(rows, block) * heads,)](
        lost, lse, *touched, *left, rows, TOP=lost.shape[-1], BLOCK=block
    )
    return touched, left


def _amend_gradients(grad, q, k, v, output, lse, lost, gradients, call: Decisions) -> Listed:
    """Correct the plain backward's gradients for lost keys, and return the rows that it left out (listed rows).

    Atomics fix the order of the sums, so it varies from run to run, as in the plain backward.
    """
    d_q, d_k, d_v = gradients
    batch, heads, rows, _ = q.shape
    tiles = amend_tiles()
    touched, listed = list_rows(lost, lse, q)
    key_tiles = triton.cdiv(k.shape[2], tiles.columns)
    key_shares, value_shares = (torch.empty(lost.shape, dtype=torch.float32, device=q.device) for _ in range(2))
    tally = torch.zeros(batch * heads, key_tiles, dtype=torch.int32, device=q.device)
    group = heads // k.shape[1]
    sizes = _sizes(q, v, call)
    amend_queries_kernel[(triton.cdiv(rows, tiles.rows) * batch * heads,)](
        q,
        k,
        v,
        output,
        grad,
        lse,
        lost,
        d_q,
        key_shares,
        value_shares,
        tally,
        *touched,
        *strides(q, k, v, output, grad, d_q),
        call.scale,
        heads,
        group,
        rows,
        key_tiles,
        **sizes,
        BM=tiles.rows,
        BN=tiles.columns,
        ZERO=call.drop == "zero",
        num_warps=tiles.warps,
        **OPTIONS,
    )
    ends = tally.cumsum(-1, dtype=torch.int32)
    entries = torch.empty_like(lost)
    sort_lost_kernel[(triton.cdiv(lost.numel(), 1024),)](
        lost, ends - tally, entries, rows, key_tiles, lost.numel(), BN=tiles.columns, TOP=call.top, BLOCK=1024
    )
    amend_keys_kernel[(key_tiles * batch * k.shape[1],)](
        q,
        grad,
        lost,
        key_shares,
        value_shares,
        tally,
        ends,
        entries,
        d_k,
        d_v,
        *strides(q, grad, d_k, d_v),
        k.shape[1],
        group,
        rows,
        key_tiles,
        **sizes,
        BN=tiles.columns,
        BLOCK=16,
        **OPTIONS,
    )
    return listed


def _sizes(q: Tensor, v: Tensor, call: Decisions) -> dict[str, int]:
    return {"D": q.shape[-1], "E": v.shape[-1], "BLOCK_D": block(q), "BLOCK_E": block(v), "TOP": call.top}
