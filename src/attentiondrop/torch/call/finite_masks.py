"""Warn of numbers that mean to hide keys, but count as biases or logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import warn_once
from ..untouched import is_untouched
from .visibility import is_hidden

#: What old code adds to hide a key. A bias is not that large, or hardly ever.
_LARGE = -1e4
#: Swin adds -100 to a bias. Biases that fall with the distance (ALiBi) reach such numbers too, but not at one leap.
_FAR, _NEAR = -80.0, -40.0
#: How many masks of a process are looked at: on a GPU, each look waits for the device.
_MOST_LOOKS = 16
_looks = 0


def warn_of_finite_mask(mask: Tensor) -> None:
    """Warn if a mask has numbers like -100 or -1e9 that mean to hide a key.

    Only -inf and half of the lowest number hide a key (`docs/semantics.md`). Added to a logit, -1e9 hides the key from
    a plain softmax, too. But a perturbation may replace such a logit, or mix it with others.
    """
    if not mask.is_floating_point() or not _may_look(mask):
        return
    far = (mask <= _FAR) & ~is_hidden(mask)
    leaps = far.any() & ~((mask > _FAR) & (mask < _NEAR)).any()
    if bool((far & (mask <= _LARGE)).any() | leaps):
        warn_once(
            "finite mask",
            f"the additive mask has numbers of {mask[far].max().item():.4g} or less that count as a bias, not as "
            "hidden keys: a perturbation may show these keys. Use -inf or torch.finfo(dtype).min, or a boolean mask",
        )


def warn_of_finite_logits(logits: Tensor) -> None:
    """The same for logits that a layer has masked itself.

    Logits may be as low as -100. They are not at -10,000, with none on the way there, unless a mask was added.
    """
    if not _may_look(logits):
        return
    far = (logits <= 0.9 * _LARGE) & ~is_hidden(logits)
    between = (logits > 0.9 * _LARGE) & (logits < 0.1 * _LARGE)
    if bool(far.any() & ~between.any()):
        warn_once(
            "finite logits",
            f"logits of {logits[far].max().item():.4g} or less do not count as hidden keys: a perturbation may show "
            "these keys, or mix them with others. Hide keys by -inf or torch.finfo(dtype).min, or by a boolean mask",
        )


def _may_look(values: Tensor) -> bool:
    """Whether the values can be looked at, and few have been yet."""
    global _looks
    if _looks >= _MOST_LOOKS or values.is_meta or not is_untouched():
        return False
    if values.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    _looks += 1
    return True


def look_again() -> None:
    """Look at the next masks as if they were the first (used by tests)."""
    global _looks
    _looks = 0
