"""Which keys each row sees, kept in the most compact form that is known: fast paths depend on the form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Visibility(NamedTuple):
    """A key is visible where `keys` and `pairs` are True (None: everywhere) and, if `causal`, not in the future.

    `keys` is the same for every row: [B or 1, H or 1, 1, M]. `pairs` is anything: [B or 1, H or 1, N, M].
    """

    causal: bool
    keys: Tensor | None = None
    pairs: Tensor | None = None

    def dense(self, rows: int, columns: int, device: torch.device) -> Tensor | None:
        """One boolean tensor that broadcasts to [B, H, N, M], or None when every key is visible."""
        visible = self.keys if self.pairs is None else self.pairs
        if self.causal:
            past = torch.ones(rows, columns, dtype=torch.bool, device=device).tril().view(1, 1, rows, columns)
            visible = past if visible is None else visible & past
        return visible


def split(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A mask as (what is visible, what is added to the logits), each of them None where there is nothing to say."""
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    # Half of the lowest finite value: libraries write finfo.min, and sums of it, for "hidden".
    # A NaN hides nothing: it must show.
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    return ~hidden, mask.masked_fill(hidden, 0.0)


def find_layout(visible: Tensor | None, is_causal: bool, rows: int) -> Visibility:
    """The compact form of a mask, as far as it can be told.

    The shape and strides tell most. Where the values can be read without breaking a graph, they tell whether a full
    [N, M] mask is only key padding, or causality and key padding, which is what many libraries materialise. On a GPU
    that look is one synchronisation; the path it can avoid costs more.
    """
    if visible is None:
        return Visibility(is_causal)
    if visible.shape[-2] == 1 or visible.stride(-2) == 0:
        return Visibility(is_causal, keys=visible[..., :1, :])
    if torch.compiler.is_compiling() or _is_capturing(visible.device):
        return Visibility(is_causal, pairs=visible)
    last = visible[..., -1:, :]
    if visible.is_meta:
        return Visibility(is_causal, keys=last)  # there are no values, and so none that refuse anything
    if torch.equal(visible, last.expand_as(visible)):
        return Visibility(is_causal, keys=last)
    past = torch.ones(rows, visible.shape[-1], dtype=torch.bool, device=visible.device).tril()
    if not is_causal and torch.equal(visible, last & past):
        return Visibility(True, keys=last)
    return Visibility(is_causal, pairs=visible)


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
