"""Which keys each row sees. The form matters: some fast paths exist only for masks that are known to be simple."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from ...errors import ArgumentError, bad_argument
from ...validation import integer
from ..untouched import is_untouched
from .blocks import Blocks
from .leaves import Active


class Visibility(NamedTuple):
    """A key is visible where `keys` and `pairs` are True (None: everywhere) and, if `causal`, not in the future.

    `keys` is the same for every row: [B or 1, H or 1, 1, M]. `pairs` is anything: [B or 1, H or 1, N, M]. With
    `window`, row i sees no key before `i - window[0]` and none behind `i + window[1]`. `blocks` says which blocks of
    keys a block of rows sees. A key must be visible by all of these.
    """

    causal: bool
    keys: Tensor | None = None
    pairs: Tensor | None = None
    window: tuple[int, int] | None = None
    blocks: Blocks | None = None

    def is_local(self) -> bool:
        """Whether there is a window, or blocks."""
        return self.window is not None or self.blocks is not None

    def dense(self, rows: int, columns: int, device: torch.device) -> Tensor | None:
        """One boolean tensor that broadcasts to [B, H, N, M], or None when every key is visible."""
        visible = self.keys if self.pairs is None else self.pairs
        if self.causal:
            past = torch.ones(rows, columns, dtype=torch.bool, device=device).tril().view(1, 1, rows, columns)
            visible = past if visible is None else visible & past
        if self.window is not None:
            inside = in_window(self.window, torch.arange(rows, device=device), torch.arange(columns, device=device))
            visible = inside.view(1, 1, rows, columns) if visible is None else visible & inside
        if self.blocks is not None:
            inside = self.blocks.dense(rows, columns)
            visible = inside if visible is None else visible & inside
        return visible


def in_window(window: tuple[int, int], rows: Tensor, columns: Tensor) -> Tensor:
    """Which of the keys `columns` each of `rows` sees: [rows, columns]."""
    distance = columns - rows[:, None]
    return (distance >= -window[0]) & (distance <= window[1])


def checked_window(window: Any) -> tuple[int, int] | None:
    """What users pass as `window`."""
    if window is None:
        return None
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise bad_argument("window", "a pair of integers: keys before and keys behind a row, -1 for all", window)
    left, right = (integer("window", side, -1) for side in window)
    return left, right


def of_window(window: tuple[int, int] | None, causal: bool, rows: int, columns: int) -> Visibility:
    """Causality and a window, in the simplest form: a window that hides nothing is none, one may be plain causality."""
    if window is None:
        return Visibility(causal)
    left, right = (max(rows, columns) if side < 0 else side for side in window)
    right = min(right, 0) if causal else right
    if left >= rows - 1 and right >= columns - 1:
        return Visibility(False)
    if left >= rows - 1 and right == 0:
        return Visibility(True)
    return Visibility(False, window=(left, right))


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
    hidden = is_hidden(mask)
    return ~hidden, mask.masked_fill(hidden, 0.0)


def is_hidden(values: Tensor) -> Tensor:
    """Which values of an additive mask, or of logits that are masked already, hide a key.

    Half of the lowest finite value is the limit: libraries write finfo.min, and sums of it, for "hidden". A NaN hides
    nothing, so that it reaches the output, where users see it.
    """
    return values <= torch.finfo(values.dtype).min / 2


def hidden_from_all_rows(hidden: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """What logits [B, H, N, M] hide themselves, for a regulariser that mixes rows: [B, H, 1, M], and the logits.

    A key that only some rows hide is an error, as it is in a mask. Where values cannot be read, its logit becomes NaN.
    """
    keys = hidden.all(dim=-2, keepdim=True)
    differing = hidden & ~keys
    if is_untouched() and not hidden.is_meta and not _is_capturing(hidden.device):
        if bool(differing.any()):
            refuse_mixed_rows("logits that hide different keys from different rows")
        return keys, logits
    return keys, logits.masked_fill(differing, torch.nan)


def mix_rows(leaves: Iterable[Active]) -> bool:
    """Whether one of the regularisers mixes the logits of different rows, as a blur along the queries does."""
    return any(leaf.spec.mixes_rows for leaf in leaves)


def compact_form(raw: Visibility, rows: int, rows_are_mixed: bool) -> Visibility:
    """`raw` in the most compact form that can be found; an error if rows are mixed that see different keys."""
    found = find_form(raw.pairs, raw.causal, rows)._replace(window=raw.window, blocks=raw.blocks)
    if rows_are_mixed and (found.causal or found.pairs is not None or found.is_local()):
        refuse_mixed_rows("a causal mask" if found.causal else "a mask that hides different keys from different rows")
    return found


def refuse_mixed_rows(kind: str) -> NoReturn:
    """Refuse a blur along the queries under masks of this kind."""
    raise ArgumentError(
        f'axes: expected "keys" under {kind}, received "both", which would show a row what only later rows see'
    )


def find_form(visible: Tensor | None, is_causal: bool, rows: int) -> Visibility:
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
    # (Without any row, there is no last one.)
    last = visible[..., -1:, :] if visible.shape[-2] else visible.all(dim=-2, keepdim=True)
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
