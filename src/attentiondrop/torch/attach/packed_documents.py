"""Batches in which several documents are packed into one row, with position numbers that begin anew.

transformers separates the documents by a mask, and then nothing is selected, dropped or blurred across them. But it
makes such a mask only of `position_ids`, and only if the model uses no cache (`use_cache=True` is the default of many
models) and gets no `attention_mask`. Otherwise the mask is causal, or hides padding, and every document attends to
those before it. So would a perturbation: that is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...errors import AttachError
from ..call.blocks import Blocks
from ..call.stopping import stop_unless
from ..call.visibility import is_hidden
from .once_in_a_pass import OnceInAPass
from .sites import Site

#: Arguments with the boundaries of documents, for flash attention.
_BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k")
#: How many calls of a site look at the values on an accelerator: looking waits for the device. Later calls leave it
#: to the device to stop the program, which explains less.
_LOOKS = 2
_LOOKED = "looked at positions"
_ADVICE = (
    "pass use_cache=False and no attention_mask, so that position_ids give a mask, or pass a mask "
    "[batch, 1, queries, keys] that hides the other documents"
)

Mask = Tensor | Blocks | None


#: Positions and masks that are no reason to refuse, as far as this can be said now.
_checked: OnceInAPass[None] = OnceInAPass()


def refuse_unseparated_documents(
    module: nn.Module, site: Site, query: Tensor, key: Tensor, mask: Mask, arguments: dict[str, Any]
) -> None:
    """Raise `AttachError` if rows hold several documents that `mask` does not separate.

    `arguments` are those that transformers passes to an attention function beside tensors and mask.
    """
    batch, rows, keys = query.shape[0], query.shape[2], key.shape[2]
    if mask is not None and (site.kind == "cross" or keys < rows):
        return  # these keys are no tokens of the row
    for name in _BOUNDARIES:
        boundaries = arguments.get(name)
        if boundaries is not None and len(boundaries) > batch + 1:
            refused = _refused(module, site, f"{name} packs {len(boundaries) - 1} documents")
            if mask is None:
                raise refused
            _check(boundaries, _positions(boundaries, batch, rows, query.device), mask, keys, site, refused)
    positions = arguments.get("position_ids")
    # Positions of several dimensions, as for images, do not grow along a row.
    if isinstance(positions, Tensor) and positions.shape in ((1, rows), (batch, rows)):
        refused = _refused(module, site, "position_ids pack several documents")
        # One row of positions for a whole batch is what models make themselves: it is not worth waiting for.
        _check(positions, positions, mask, keys, site, refused, may_wait=positions.shape[0] == batch)


def _check(
    origin: Tensor,
    positions: Tensor,
    mask: Mask,
    keys: int,
    site: Site,
    refused: AttachError,
    may_wait: bool = True,
) -> None:
    """Raise `refused` if the documents that begin anew in `positions`, [batch or 1, rows], see each other.

    `origin` is the tensor of the user's that they were computed from.
    """
    tensors = [origin, *([] if mask is None else [mask.states if isinstance(mask, Blocks) else mask])]
    if torch.compiler.is_compiling() or not all(map(_has_values, tensors)):
        return
    _checked.get(tensors, site, lambda: _refuse(_crosses(positions, mask, keys), site, refused, may_wait))


def _refuse(crosses: Tensor, site: Site, refused: AttachError, may_wait: bool) -> None:
    """Raise now if it costs no waiting, or not much of it in all; otherwise let the device raise."""
    if not may_wait and crosses.is_cpu:
        try:
            torch._assert_async(~crosses)  # (an operation, and no value in Python: a recorded step may contain it)
        except RuntimeError:
            raise refused from None
        return
    if _takes_waiting(crosses):
        looked = site.extra.get(_LOOKED, 0)
        is_capturing = crosses.is_cuda and torch.cuda.is_current_stream_capturing()
        if not may_wait or looked >= _LOOKS or is_capturing:
            stop_unless(~crosses, str(refused))
            return
        site.extra[_LOOKED] = looked + 1
    if bool(crosses):
        raise refused


def _has_values(x: Tensor) -> bool:
    """Whether values can be read: not on the meta device, of a fake tensor, or inside `torch.vmap`."""
    return type(x) is Tensor and not x.is_meta and not torch._C._functorch.is_batchedtensor(x)


def _takes_waiting(x: Tensor) -> bool:
    """Whether reading a value waits for a device."""
    return x.device.type != "cpu"


def _refused(module: nn.Module, site: Site, what: str) -> AttachError:
    where = f"{site.name or 'the model'} ({type(module).__name__})"
    return AttachError(f"{where}: {what} into one row, and no mask separates them: {_ADVICE}")


def _positions(boundaries: Tensor, batch: int, rows: int, device: torch.device) -> Tensor:
    """The position of each token in its document, [batch, rows]. Boundaries count the tokens of the whole batch."""
    starts = boundaries[:-1].to(device, torch.int64)
    tokens = torch.arange(batch * rows, device=device)
    return (tokens - starts[torch.bucketize(tokens, starts, right=True) - 1]).view(batch, rows)


def _crosses(positions: Tensor, mask: Mask, keys: int) -> Tensor:
    """Whether the first token of a document sees the last one of the document before it: one boolean.

    That pair decides. A mask of the user's own may well show all documents a beginning that they share. Padding has
    positions, too, but is no document: a token that does not see itself is padding, and is passed over.

    A token may close a document although its position begins anew, as the full stop after a phrase does in Grounding
    DINO: the token before it sees it, and the token behind it does not.
    """
    if mask is None:
        return (positions[:, 1:] <= positions[:, :-1]).any()
    # Keys from a cache, as of prefix tuning, stand before those of the tokens.
    rows = positions.shape[1]
    beyond = keys - rows
    row = torch.arange(rows, device=positions.device)
    is_token = _sees(mask, row, beyond, rows)
    last_token = torch.where(is_token, row, -1).cummax(dim=-1).values
    earlier = torch.nn.functional.pad(last_token, (1, 0), value=-1)[..., :-1]
    has_earlier, earlier = earlier >= 0, earlier.clamp_min(0)
    here = positions[:, None].expand(torch.broadcast_shapes(positions[:, None].shape, earlier.shape))
    begins = here <= here.gather(-1, earlier.expand_as(here))
    sees_earlier = has_earlier & _sees(mask, earlier, beyond, rows)
    next_token = torch.where(is_token, row, rows).flip(-1).cummin(dim=-1).values.flip(-1)
    later = torch.nn.functional.pad(next_token, (0, 1), value=rows)[..., 1:]
    has_later, later = later < rows, later.clamp_max(rows - 1)
    is_seen_by_earlier = (has_later & _sees(mask, later, beyond, rows)).gather(-1, earlier)
    is_seen_by_later = sees_earlier.gather(-1, later)
    closes = is_seen_by_earlier & has_later & ~is_seen_by_later
    return (is_token & begins & sees_earlier & ~closes).any()


def _sees(mask: Tensor | Blocks, columns: Tensor, beyond: int, rows: int) -> Tensor:
    """Whether each row sees one key: `columns` is [..., rows] and counts keys from `beyond` on; [B, H, rows]."""
    row = torch.arange(rows, device=columns.device)
    if isinstance(mask, Blocks):
        return mask.pairs(row, columns + beyond)
    mask = mask[(None,) * (4 - mask.ndim)]
    whole = mask.expand(-1, -1, rows, -1)
    index = (columns + beyond).expand(*mask.shape[:2], rows)
    values = whole.gather(-1, index[..., None])[..., 0]
    return values if values.dtype == torch.bool else ~is_hidden(values)
