"""The layers of a model share a mask. What its values allow is read once in a forward pass, and not in every layer.

A blur runs fused only under a mask that hides the same keys from every row, apart from causality. Libraries write such
a mask as a full one. On a GPU, reading its values waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...specs import BlurSmoothing
from ..call.visibility import find_form
from .sites import Site


@dataclass
class _Known:
    """What was found of a mask, and the sites that have asked since."""

    version: int
    is_causal: bool
    is_simple: bool
    asked: set[int] = field(default_factory=set)


_known = WeakTensorKeyDictionary()


def simple_form(mask: Tensor, site: Site) -> tuple[Tensor, tuple[int, int] | None]:
    """The mask of a site in training, as simple as its values allow, and the window that hides the future beside it.

    A site asks once in a forward pass. If it asks again, there may be other values in the same memory: they are read
    again then.
    """
    is_full = mask.dtype == torch.bool and mask.ndim == 4 and mask.shape[-2] > 1
    if not is_full or mask.is_inference() or not any(isinstance(leaf, BlurSmoothing) for leaf in site.spec.leaves()):
        return mask, None
    known: _Known | None = _known.get(mask)
    if known is None or known.version != mask._version or id(site) in known.asked:
        form = find_form(mask, False, mask.shape[-2])
        known = _known[mask] = _Known(mask._version, form.causal, form.keys is not None)
    known.asked.add(id(site))
    if not known.is_simple:
        return mask, None
    return mask[..., -1:, :], (-1, 0) if known.is_causal else None
