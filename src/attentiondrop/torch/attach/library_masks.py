"""Masks of libraries that hide keys by a finite number, such as -100 for the other parts of a shifted window.

A plain softmax gives such keys no weight. But for a perturbation they are visible (`docs/semantics.md`): a blur mixes
their logits with those of their neighbours, and a dropped logit becomes 0. So in training, the attention modules listed
here get -inf in the place of that number. Evaluation gets the mask of the library.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

#: Package and class -> the argument of its forward with the mask. It is added to a bias afterwards, or to none, so here
#: it holds only zeros and the number that hides.
_ARGUMENTS = {
    ("timm", "WindowAttention"): "mask",  # Swin
    ("transformers", "SwinAttention"): "attention_mask",
    ("transformers", "EomtAttention"): "attention_mask",
    ("transformers", "EomtDinov3Attention"): "attention_mask",
    ("transformers", "VideomtAttention"): "attention_mask",
    ("transformers", "MarkupLMSelfAttention"): "attention_mask",  # -10,000 for padding
}
#: The largest number that one of them hides keys by.
_HIDES = -100.0


def with_hidden_keys(base: type[nn.Module], members: dict[str, Any]) -> dict[str, Any]:
    """The members of a generated subclass of `base`, with a forward that hides by -inf in training where it must."""
    name = _ARGUMENTS.get((base.__module__.partition(".")[0], base.__name__))
    parameters = inspect.signature(base.forward).parameters
    if name is None or name not in parameters:
        return members
    inner: Callable[..., Any] = members.get("forward", base.forward)
    place = list(parameters).index(name) - 1  # without `self`

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not self.training:
            return inner(self, *args, **kwargs)
        if name in kwargs:
            kwargs[name] = hidden_by_infinity(kwargs[name])
        elif len(args) > place:
            args = (*args[:place], hidden_by_infinity(args[place]), *args[place + 1 :])
        return inner(self, *args, **kwargs)

    return {**members, "forward": functools.wraps(inner)(forward)}


def hidden_by_infinity(mask: Any) -> Any:
    """The additive mask, with -inf where it hides; anything else unchanged."""
    if not isinstance(mask, Tensor) or not mask.is_floating_point():
        return mask
    return torch.where(mask <= _HIDES, -torch.inf, mask)
