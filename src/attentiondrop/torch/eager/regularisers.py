"""Each regulariser as a differentiable function of logits, visibility and draws: the twin of `attentiondrop.reference`.

`visible` is a boolean tensor that broadcasts against the logits [B, H, N, M], or None when every key is visible.
Rates are floats or 0-dim tensors. Which logits are selected and dropped has no gradient.
"""

from __future__ import annotations

import functools
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from ..draws import is_at_hand, is_recorded_as_usual

Rate = float | Tensor

#: NumPy ranks logits in a third of the time that one thread of torch takes. It has one thread: with several, torch is
#: faster unless there are so few.
FEW = 2**15
_FEW_THREADS = 2

#: Temperature of the relaxed Bernoulli. A lower one is closer to a step, and makes noisier gradients.
TEMPERATURE = 0.5


def is_learned(rate: Rate) -> TypeGuard[Tensor]:
    """Whether a rate needs a gradient."""
    return isinstance(rate, Tensor) and rate.requires_grad and torch.is_grad_enabled()


def relaxed_below(uniform: Tensor, p: Tensor) -> Tensor:
    """`uniform < p` as 0 and 1, with the gradient for `p` of a relaxed Bernoulli (straight through)."""
    odds = torch.logit(p.clamp(1e-6, 1 - 1e-6)) - torch.logit(uniform.to(p.dtype).clamp(1e-6, 1 - 1e-6))
    soft = torch.sigmoid(odds / TEMPERATURE)
    return (uniform < p).to(p.dtype) + soft - soft.detach()


def top_k(logits: Tensor, visible: Tensor | None, k: int) -> Tensor:
    """The `min(k, visible)` largest visible logits of each row, as a boolean tensor; ties go to the lower key.

    NaN is never among them.
    """
    logits = logits.detach()
    shown = logits if visible is None else logits.masked_fill(~visible, -torch.inf)
    if k >= shown.shape[-1]:
        numbers = ~shown.isnan()
        return numbers if visible is None else numbers & visible
    if is_at_hand(shown) and (shown.numel() <= FEW or torch.get_num_threads() <= _FEW_THREADS):
        found = top_k_without_ties(shown.numpy(), k)
        if found is not None:
            return torch.from_numpy(found)
    # torch.topk may pick any of equal logits. So only the threshold is taken from it; ties are counted from the left.
    threshold = shown.topk(k, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
    above = shown > threshold
    level = shown == threshold
    room = k - above.sum(dim=-1, keepdim=True, dtype=torch.int32)
    selected = above | (level & (level.cumsum(dim=-1, dtype=torch.int32) <= room))
    return selected if visible is None else selected & visible


def top_k_without_ties(shown: npt.NDArray[Any], k: int) -> npt.NDArray[np.bool_] | None:
    """The same by NumPy; None if a row has ties, hidden keys or NaN."""
    threshold = np.partition(shown, -k, axis=-1)[..., -k, None]
    selected = shown >= threshold
    # A row with ties at the threshold, or with few visible keys, has more than k. Only one with NaN has fewer.
    if np.count_nonzero(selected) != k * threshold.size or np.isnan(shown).any():
        return None
    return selected


def _all_known(flags: Tensor) -> bool:
    """Whether all flags are True, as far as that can be read at no cost; False otherwise."""
    return is_at_hand(flags) and bool(flags.numpy().all())


def without_emptying(dropped: Tensor, logits: Tensor, visible: Tensor | None) -> Tensor:
    """`dropped`, except that a row which would lose every visible key keeps its largest one."""
    kept = ~dropped if visible is None else visible & ~dropped
    filled = kept.any(dim=-1, keepdim=True)
    if _all_known(filled):
        return dropped
    return dropped & ~(~filled & top_k(logits, visible, 1))


def by_key(logits: Tensor, visible: Tensor | None, below: Tensor) -> Tensor:
    """Decisions `below` for the ranks [..., k] of a row, at the keys of its k largest logits; False for the others."""
    shown = logits.detach() if visible is None else logits.detach().masked_fill(~visible, -torch.inf)
    # Stable, so that ties go to the lower key.
    order = shown.sort(dim=-1, descending=True, stable=True).indices[..., : below.shape[-1]]
    return torch.zeros_like(shown, dtype=torch.bool).scatter(-1, order, below)


def dropped_largest(logits: Tensor, visible: Tensor | None, below: Tensor, k: int, fill: str) -> Tensor:
    """Which logits hard masking drops: of the `k` largest of each row those whose uniform was `below` p."""
    dropped = top_k(logits, visible, k) & below
    return dropped if fill == "zero" else without_emptying(dropped, logits, visible)


def learned_hard_masking(logits: Tensor, visible: Tensor | None, uniform: Tensor, p: Tensor, k: int) -> Tensor:
    """The logits after hard masking with zeros, with a gradient for `p`."""
    # A hidden logit must not make the gradient of p infinite.
    shown = logits if visible is None else logits.masked_fill(~visible, 0.0)
    return shown * (1.0 - top_k(logits, visible, k) * relaxed_below(uniform, p))


def dropped_keys(logits: Tensor, visible: Tensor | None, below: Tensor) -> Tensor:
    """Which keys DropKey hides from each row: the visible ones whose uniform was `below` p.

    `below` may be [B, H, 1, M], for all rows. A NaN is not hidden, so that it reaches the output.
    """
    dropped = below & ~logits.detach().isnan()
    return without_emptying(dropped if visible is None else dropped & visible, logits, visible)


def gaussian_noise(logits: Tensor, normal: Tensor, sigma: Rate) -> Tensor:
    """Independent `N(0, sigma^2)` on every logit, also on hidden ones, which nobody reads."""
    return logits + sigma * normal


def temperature_noise(logits: Tensor, normal: Tensor, sigma: Rate) -> Tensor:
    """The logits of each (sample, head) times `exp(sigma * z)`; `normal` is [B, H], `sigma` broadcasts to it."""
    return logits * torch.exp(sigma * normal)[:, :, None, None]


def _squares(width: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """The squares of the offsets -r..r."""
    radius = (width - 1) // 2
    return torch.arange(-radius, width - radius, device=device, dtype=dtype).square()


@functools.lru_cache(maxsize=64)
def _squares_once(width: int, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # or nobody could use them for a gradient later
        return _squares(width, dtype, torch.device("cpu"))


def gaussian_kernel(sigma: Tensor, width: int) -> Tensor:
    """Weights of the offsets -r..r along a new last axis, summing to 1; `sigma = 0` is the identity."""
    squares = _squares_once(width, sigma.dtype) if is_at_hand(sigma) else _squares(width, sigma.dtype, sigma.device)
    # The lower limit keeps d^2 / variance finite. It changes no weight: exp(-d^2 / variance) is 0 there anyway, and
    # exactly 1 at d = 0.
    variance = sigma.square().clamp_min(torch.finfo(sigma.dtype).tiny * 2 * width**2).unsqueeze(-1)
    weights = torch.exp(squares / (-2 * variance))
    return weights / weights.sum(dim=-1, keepdim=True)


def gaussian_kernel_of_number(sigma: np.floating[Any], width: int, dtype: torch.dtype) -> Tensor:
    """`gaussian_kernel` of one sigma, [1, 1, width]. NumPy takes the steps that it computes as torch does."""
    number = type(sigma)
    variance = max(sigma * sigma, number(torch.finfo(dtype).tiny * 2 * width**2))
    weights = torch.from_numpy(_squares_once(width, dtype).numpy() / (number(-2) * variance)).exp_()
    return (weights / weights.sum(dim=-1, keepdim=True)).view(1, 1, width)


def convolve(x: Tensor, kernel: Tensor, dim: int) -> Tensor:
    """`sum_d kernel[d] x[j + d]` along `dim` (-1 or -2), zeros outside; `kernel` is [B or 1, H or 1, width]."""
    if x.requires_grad and torch.is_grad_enabled() and not kernel.requires_grad and is_recorded_as_usual(x, kernel):
        found: Tensor = _Convolution.apply(x, kernel, dim)
        return found
    return _convolved(x, kernel, dim)


class _Convolution(torch.autograd.Function):
    """`convolve` as one node of the graph, with a constant kernel. Its gradient is a convolution, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(kernel)
        ctx.dim = dim
        return _convolved(x, kernel, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad, kernel = grads[0], ctx.saved_tensors[0].flip(-1)
        if torch.is_grad_enabled():
            return convolve(grad, kernel, ctx.dim), None, None
        # Each product is rounded before it is added, as in the gradient that autograd makes of single operations.
        first, *others = _terms(grad, kernel, ctx.dim)
        total = first[0] * first[1]
        for part, weight in others:
            total = total + part * weight
        return total, None, None


def _convolved(x: Tensor, kernel: Tensor, dim: int) -> Tensor:
    first, *others = _terms(x, kernel, dim)
    total = first[0] * first[1]
    for part, weight in others:
        total = torch.addcmul(total, part, weight)
    return total


def _terms(x: Tensor, kernel: Tensor, dim: int) -> list[tuple[Tensor, Tensor]]:
    """What a convolution sums up: `x` at each offset along `dim`, and its weight."""
    width, length = kernel.shape[-1], x.shape[dim]
    padded = F.pad(x, (width // 2, width // 2) if dim == -1 else (0, 0, width // 2, width // 2))
    weights = kernel[..., None, None].unbind(2)
    if is_at_hand(padded) and not (torch.is_grad_enabled() and padded.requires_grad):
        # All offsets as one view: fewer calls.
        views = padded.as_strided((width, *x.shape), (padded.stride(dim), *padded.stride())).unbind(0)
        return list(zip(views, weights, strict=True))
    return [(padded.narrow(dim, place, length), weights[place]) for place in range(width)]


def blur_smoothing(
    logits: Tensor, visible: Tensor | None, kernel: Tensor, axes: str, edges: str
) -> tuple[Tensor, Tensor | None]:
    """Convolve along the keys (and the queries). A hidden logit counts as 0, or is left out ("renormalize")."""
    for dim in (-1, -2) if axes == "both" else (-1,):
        if visible is not None:
            logits = logits.masked_fill(~visible, 0.0)
        logits = convolve(logits, kernel, dim)
        if edges == "renormalize":
            logits = logits / blurred_visibility(visible, logits, kernel, dim)
    return logits, visible


def blurred_visibility(visible: Tensor | None, like: Tensor, kernel: Tensor, dim: int) -> Tensor:
    """The part of the kernel that falls on visible places along `dim`; 1 where the place itself is hidden."""
    if visible is None:
        shape = (1, 1, 1, like.shape[-1]) if dim == -1 else (1, 1, like.shape[-2], 1)
        return convolve(torch.ones(shape, dtype=like.dtype, device=like.device), kernel, dim)
    if visible.shape[dim] == 1:
        visible = visible.expand(*visible.shape[:-2], *((like.shape[-2], -1) if dim == -2 else (-1, like.shape[-1])))
    return convolve(visible.to(like.dtype), kernel, dim).masked_fill(~visible, 1.0)


def convolve_keys(k: Tensor, visible_keys: Tensor | None, kernel: Tensor, edges: str) -> Tensor:
    """Keys [B, H, M, D] blurred along M. A hidden key counts as 0, or is left out ("renormalize")."""
    column = None if visible_keys is None else visible_keys.transpose(-1, -2)
    if column is not None:
        k = k.masked_fill(~column, 0.0)
    blurred = convolve(k, kernel, -2)
    if edges == "renormalize":
        blurred = blurred / blurred_visibility(column, k, kernel, -2)
    return blurred


def masked_softmax(logits: Tensor, visible: Tensor | None, sinks: Tensor | None = None) -> Tensor:
    """Softmax over the visible keys. A row that sees none gives zeros, and there is no NaN in its gradient either."""
    seeing: Tensor | None = None
    if visible is not None:
        seeing = visible.any(dim=-1, keepdim=True)
        if _all_known(seeing):
            logits, seeing = logits.masked_fill(~visible, -torch.inf), None
        else:
            logits = logits.masked_fill(~visible & seeing, -torch.inf)
    if sinks is not None:
        column = sinks.to(logits.dtype).view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
        weights = torch.softmax(torch.cat([logits, column], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(logits, dim=-1)
    return weights if seeing is None else weights.masked_fill(~seeing, 0.0)


def attention_dropout(weights: Tensor, below: Tensor, p: Rate) -> Tensor:
    """Each weight becomes 0 where its uniform was `below` p; the others grow by `1 / (1 - p)`."""
    return (weights * kept_factor(p)).masked_fill(below, 0.0)


def learned_attention_dropout(weights: Tensor, uniform: Tensor, p: Tensor) -> Tensor:
    """The same with a gradient for `p`."""
    return weights * kept_factor(p) * (1.0 - relaxed_below(uniform, p))


def drop_attention(weights: Tensor, dropped: Tensor, least_share: float) -> Tensor:
    """The `dropped` weights become 0, and each row is divided by the share that is left, which has no gradient.

    `dropped` is [B, H, N, M], or [B, H, 1, M] for all rows. A row with less than `least_share` left keeps its largest.
    """
    # A product, which keeps a NaN, instead of `masked_fill`.
    return weights * share_factors(weights, dropped, least_share)


def share_factors(weights: Tensor, dropped: Tensor, least_share: float) -> Tensor:
    """What `drop_attention` multiplies the weights by."""
    known = weights.detach()
    total = known.sum(dim=-1, keepdim=True)
    left = known.masked_fill(dropped, 0.0).sum(dim=-1, keepdim=True)
    emptied = left < least_share * total
    if not _all_known(~emptied):
        saved = emptied & top_k(known, None, 1)
        dropped = dropped & ~saved
        left = torch.where(emptied, left + known.amax(dim=-1, keepdim=True), left)
    # A row that sees no key has no sum, and weights of 0.
    return (total / torch.where(left == 0, 1.0, left)) * ~dropped


def by_block(below: Tensor, span: int) -> Tensor:
    """Decisions or words of single keys (the last dimension), replaced by those of the first of each `span` keys."""
    if span == 1:
        return below
    keys = torch.arange(below.shape[-1], device=below.device)
    return below.index_select(-1, keys // span * span)


def kept_factor(p: Rate) -> Rate:
    """By how much dropout makes the kept weights grow."""
    kept = 1.0 - p
    # At p = 1 all weights become 0, so the factor only has to be finite.
    return 1.0 / torch.clamp_min(kept, 2.0**-24) if isinstance(kept, Tensor) else 1.0 / max(kept, 2.0**-24)


def head_factors(uniform: Tensor, p: Rate, dtype: torch.dtype) -> Tensor:
    """What the output of each (sample, head) is multiplied by. The head with a sample's largest uniform stays."""
    kept = uniform >= p
    largest = uniform == uniform.amax(dim=-1, keepdim=True)
    first = largest & (largest.cumsum(dim=-1, dtype=torch.int32) == 1)
    kept = kept | (first & ~kept.any(dim=-1, keepdim=True))
    return kept * (uniform.shape[-1] / kept.sum(dim=-1, keepdim=True, dtype=dtype))
