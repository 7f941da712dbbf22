"""The layers of a model share a mask. What its values allow is read once in a forward pass, and not in every layer.

A blur runs fused only under a mask that hides the same keys from every row, apart from causality. Libraries write such
a mask as a full one. On a GPU, reading its values waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...specs import BlurSmoothing
from ..call.visibility import find_form
from .once_in_a_pass import OnceInAPass
from .sites import Site


@dataclass(frozen=True)
class _Form:
    """What was found of a mask."""

    is_causal: bool
    is_simple: bool


_forms: OnceInAPass[_Form] = OnceInAPass()


def simple_form(mask: Tensor, site: Site) -> tuple[Tensor, tuple[int, int] | None]:
    """The mask of a site in training, as simple as its values allow, and the window that hides the future beside it."""
    is_full = mask.dtype == torch.bool and mask.ndim == 4 and mask.shape[-2] > 1
    if not is_full or not any(isinstance(leaf, BlurSmoothing) for leaf in site.spec.leaves()):
        return mask, None
    form = _forms.get([mask], site, lambda: _read(mask))
    if not form.is_simple:
        return mask, None
    return mask[..., -1:, :], (-1, 0) if form.is_causal else None


def _read(mask: Tensor) -> _Form:
    form = find_form(mask, False, mask.shape[-2])
    return _Form(form.causal, form.keys is not None)
