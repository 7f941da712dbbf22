"""Which keys each row sees. The form matters: some fast paths exist only for masks that are known to be simple."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import ArgumentError
from .leaves import Active


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


def visible_keys(visibility: Visibility) -> Tensor | None:
    """The mask [B or 1, H or 1, 1, M] if its shape says that it is the same for every row; None otherwise."""
    pairs = visibility.pairs
    if pairs is None:
        return visibility.keys
    return pairs[..., :1, :] if pairs.shape[-2] == 1 or pairs.stride(-2) == 0 else None


def split(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A mask as (what is visible, what is added to the logits). None: all is visible, or nothing is added."""
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    # Half of the lowest finite value: libraries write finfo.min, and sums of it, for "hidden".
    # A NaN hides nothing, so that it reaches the output, where users see it.
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    return ~hidden, mask.masked_fill(hidden, 0.0)


def mix_rows(leaves: Iterable[Active]) -> bool:
    """Whether one of the regularisers mixes the logits of different rows, as a blur along the queries does."""
    return any(leaf.spec.mixes_rows for leaf in leaves)


def compact_form(raw: Visibility, rows: int, rows_are_mixed: bool) -> Visibility:
    """`raw` in the most compact form that can be found; an error if rows are mixed that see different keys."""
    found = _find_form(raw.pairs, raw.causal, rows)
    if rows_are_mixed and (found.causal or found.pairs is not None):
        kind = "a causal mask" if found.causal else "a mask that hides different keys from different rows"
        raise ArgumentError(
            f'axes: expected "keys" under {kind}, received "both", which would show a row what only later rows see'
        )
    return found


def _find_form(visible: Tensor | None, is_causal: bool, rows: int) -> Visibility:
    """The most compact form of a mask that can be found.

    Shape and strides are looked at first. If they are not enough, the values are compared: many libraries write key
    padding, or causality and key padding, as a full [N, M] mask. Values are not read while a graph is compiled or
    captured. On a GPU reading them is one synchronisation, which costs less than the slower path.
    """
    if visible is None:
        return Visibility(is_causal)
    keys = visible_keys(Visibility(is_causal, pairs=visible))
    if keys is not None:
        return Visibility(is_causal, keys=keys)
    if torch.compiler.is_compiling() or _is_capturing(visible.device):
        return Visibility(is_causal, pairs=visible)
    last = visible[..., -1:, :]
    if visible.is_meta:
        return Visibility(is_causal, keys=last)  # it has no values, so assume those that allow every path
    if torch.equal(visible, last.expand_as(visible)):
        return Visibility(is_causal, keys=last)
    past = torch.ones(rows, visible.shape[-1], dtype=torch.bool, device=visible.device).tril()
    if not is_causal and torch.equal(visible, last & past):
        return Visibility(True, keys=last)
    return Visibility(is_causal, pairs=visible)


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
