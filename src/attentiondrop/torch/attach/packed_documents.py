"""Batches in which transformers packs several documents into one row, with position numbers that begin anew.

transformers separates the documents by a mask, and then nothing is selected, dropped or blurred across them. But it
makes no mask if the model uses a cache (`use_cache=True`, the default of many models), and none for the boundaries that
flash attention takes. Then every document attends to those before it, and so would a perturbation: that is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...errors import AttachError
from .sites import Site

#: Arguments with the boundaries of documents, for flash attention.
_BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k")
#: How many calls of a site look at the positions on an accelerator: looking waits for the device. Later calls leave it
#: to the device to stop the program, which explains less.
_LOOKS = 2
_LOOKED = "looked at positions"
_ADVICE = "pass use_cache=False, so that position_ids give a mask, or pass a mask [batch, 1, queries, keys]"


def refuse_unmasked_documents(module: nn.Module, site: Site, query: Tensor, arguments: dict[str, Any]) -> None:
    """Raise `AttachError` if rows hold several documents. To be called where no mask separates them.

    `arguments` are those that transformers passes to an attention function beside tensors and mask.
    """
    for name in _BOUNDARIES:
        boundaries = arguments.get(name)
        if boundaries is not None and len(boundaries) > query.shape[0] + 1:
            raise _refused(module, site, f"{name} packs {len(boundaries) - 1} documents")
    positions = arguments.get("position_ids")
    # Positions of several dimensions, as for images, do not grow along a row. One row of positions for a whole batch is
    # what models make themselves.
    if not isinstance(positions, Tensor) or positions.dim() != 2 or positions.shape[0] != query.shape[0]:
        return
    if torch.compiler.is_compiling():
        return
    again = (positions[:, 1:] <= positions[:, :-1]).any()
    refused = _refused(module, site, "position_ids pack several documents")
    if _takes_waiting(positions):
        looked = site.extra.get(_LOOKED, 0)
        if looked >= _LOOKS or (positions.is_cuda and torch.cuda.is_current_stream_capturing()):
            torch._assert_async(~again, str(refused))  # stops the program later, without waiting for the device now
            return
        site.extra[_LOOKED] = looked + 1
    if bool(again):
        raise refused


def _takes_waiting(x: Tensor) -> bool:
    """Whether reading a value waits for a device."""
    return x.device.type != "cpu"


def _refused(module: nn.Module, site: Site, what: str) -> AttachError:
    where = f"{site.name or 'the model'} ({type(module).__name__})"
    return AttachError(f"{where}: {what} into one row, and no mask separates them: {_ADVICE}")
