"""How much the predictions of the views differ: the KL divergence that `docs/semantics.md` defines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError, ShapeError, bad_argument
from ...validation import one_of


def divergence(
    logits: Sequence[Tensor],
    direction: str = "forward",
    mask: Tensor | None = None,
    items: Tensor | float | None = None,
) -> Tensor:
    """The mean over pairs of views of the KL between their softmax distributions, in float32 or wider.

    Args:
        logits: [..., classes] of each view, of equal shapes.
        direction: `"forward"`: KL(first || second) for each pair; `"reverse"`; `"symmetric"`: the mean of both.
        mask: [...], True (or not 0) at the positions that count; all of them by default.
        items: divide the sum over positions by this number instead of by their count, for losses that are accumulated
            over several batches.

    Example:
        >>> first, second = torch.tensor([[0.0, 0.0]]), torch.tensor([[2.0, 0.0]])
        >>> divergence([first, second])
        tensor(0.4338)
    """
    one_of("direction", direction, ("forward", "reverse", "symmetric"))
    first = logits[0]
    if mask is not None:
        if mask.shape != first.shape[:-1]:
            raise ShapeError(
                f"mask: expected {list(first.shape[:-1])}, the shape of the logits without their classes, "
                f"received {list(mask.shape)}"
            )
        mask = mask.to(first.device) != 0
    wide = torch.promote_types(first.dtype, torch.float32)
    scores = [torch.log_softmax(entry.to(wide), dim=-1) for entry in logits]
    pairs = list(itertools.combinations(scores, 2))
    terms: list[Tensor] = []
    for a, b in pairs:
        if direction != "reverse":
            terms.append(_kl(a, b))
        if direction != "forward":
            terms.append(_kl(b, a))
    total = torch.stack(terms).mean(dim=0)
    if mask is not None:
        total = total.masked_fill(~mask, 0.0)
    if items is None:
        items = total.numel() if mask is None else mask.sum().clamp(min=1)
    return total.sum() / items


@cache
def compiled_divergence() -> Callable[..., Tensor]:
    """`divergence` as compiled code. With many classes it takes less time and memory: each step of the formula is a
    pass over tensors of their size, and the compiler makes few passes of all steps.
    """
    return torch.compile(divergence)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q), summed over classes. A class with probability 0 in p adds 0, also if q is 0 there."""
    difference = (log_p - log_q).masked_fill(log_p == -torch.inf, 0.0)
    return (log_p.exp() * difference).sum(dim=-1)


_OTHER_OUTPUTS = (
    "the divergence is between softmax distributions over the last dimension. For the logits of sigmoids, use "
    "torch.stack([torch.zeros_like(y), y], dim=-1) as logits; for other outputs, call attentiondrop.torch.views and "
    "use your own distance"
)


def check_logits(value: Any) -> Tensor:
    """Return `value`, or raise if it cannot be logits: a floating point tensor [..., classes], at least two classes."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        what = f"{value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__
        raise bad_argument("logits", "a floating point tensor of logits", what)
    if value.dim() < 2 or value.shape[-1] < 2:
        wanted = "[..., classes] with a batch and at least two classes"
        raise ArgumentError(f"logits: expected {wanted}, received {list(value.shape)}: {_OTHER_OUTPUTS}")
    return value
