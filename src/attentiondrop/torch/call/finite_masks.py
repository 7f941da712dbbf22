"""Warn of additive masks that mean to hide keys, but count as biases."""

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
    global _looks
    if _looks >= _MOST_LOOKS or not mask.is_floating_point() or mask.is_meta or not is_untouched():
        return
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    _looks += 1
    far = (mask <= _FAR) & ~is_hidden(mask)
    leaps = far.any() & ~((mask > _FAR) & (mask < _NEAR)).any()
    if bool((far & (mask <= _LARGE)).any() | leaps):
        warn_once(
            "finite mask",
            f"the additive mask has numbers of {mask[far].max().item():.4g} or less that count as a bias, not as "
            "hidden keys: a perturbation may show these keys. Use -inf or torch.finfo(dtype).min, or a boolean mask",
        )


def look_again() -> None:
    """Look at the next masks as if they were the first (used by tests)."""
    global _looks
    _looks = 0
