"""How torch computes each regulariser: one entry each.

Eager and fused attention, monitoring, benchmarks and tests find a regulariser here. One that is not in the table is
refused; it is never computed as another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ... import hashing
from ...errors import bad_argument
from ...specs import (
    AttentionDropout,
    BlurSmoothing,
    DropAttention,
    DropHead,
    DropKey,
    GaussianNoise,
    HardMasking,
    HeadMask,
    Spec,
    TemperatureNoise,
)
from ...specs.after_softmax import LEAST_SHARE
from ..call.leaves import Active, LogitShape
from ..call.stages import Drop, Stage, WeightDrop
from ..draws import is_at_hand
from . import regularisers
from .drawn_vectors import drawn_uniforms

#: Logits [B, H, N, M], and what is visible of them.
Logits = tuple[Tensor, Tensor | None]


class Observed(NamedTuple):
    """What monitoring notes of one call: `kind` is "drop" or "sigma", the others are [b, H, ...].

    The mean of `values` over `counts` is reported; without `counts`, over all values.
    """

    kind: str
    values: Tensor
    counts: Tensor | None = None


class Regulariser(NamedTuple):
    """One entry. What `apply` takes depends on the level of the spec.

    "logits": (leaf, logits, visible) -> (logits, visible). "weights": (leaf, weights) -> weights. "heads":
    (leaf, shape, dtype) -> factors [B, H].
    """

    apply: Callable[..., Any]
    #: (leaf, logits, visible) -> what the regulariser is about to do to them, for monitoring.
    observe: Callable[[Active, Tensor, Tensor | None], Observed]
    #: How a fused pass does it; None if only eager attention can.
    stage: Stage | None = None
    #: (leaf, logits, visible) -> which logits or weights it drops, if that is all it does; its `stage` says how.
    decide: Callable[[Active, Tensor, Tensor | None], Tensor] | None = None


def entry_of(spec: Spec) -> Regulariser:
    """The entry of a regulariser."""
    if type(spec) not in TABLE:
        raise bad_argument("spec", "a spec that attentiondrop.torch can compute", str(spec))
    return TABLE[type(spec)]


# --- hard masking and DropKey ----------------------------------------------------------------------------------------


def _hard(leaf: Active, logits: Tensor, visible: Tensor | None) -> Logits:
    spec: HardMasking = leaf.spec
    p = leaf.rate("p")
    if regularisers.is_learned(p):
        uniform = leaf.draw(LogitShape(*logits.shape))
        return regularisers.learned_hard_masking(logits, visible, uniform, p, spec.k), visible
    dropped = _dropped_largest(leaf, logits, visible)
    return (logits.masked_fill(dropped, 0.0), visible) if spec.fill == "zero" else _hide(logits, visible, dropped)


def _dropped_largest(leaf: Active, logits: Tensor, visible: Tensor | None) -> Tensor:
    below = _below_p(leaf, logits, visible)
    return regularisers.dropped_largest(logits, visible, below, leaf.spec.k, leaf.spec.fill)


def _hide(logits: Tensor, visible: Tensor | None, dropped: Tensor) -> Logits:
    return logits, ~dropped if visible is None else visible & ~dropped


def _below_p(leaf: Active, logits: Tensor, visible: Tensor | None) -> Tensor:
    """Which logits hard masking drops if they are among the largest."""
    below = leaf.below(LogitShape(*logits.shape), leaf.rate("p"))
    return regularisers.by_key(logits, visible, below) if leaf.spec.heads == "stratified" else below


def _observe_hard(leaf: Active, logits: Tensor, visible: Tensor | None) -> Observed:
    candidates = regularisers.top_k(logits, visible, leaf.spec.k).expand_as(logits)
    return Observed("drop", candidates & _below_p(leaf, logits, visible), candidates)


def _why_not_hard(spec: HardMasking) -> str | None:
    return "stratified draws belong to ranks, which need the logits" if spec.heads == "stratified" else None


def _drop_of_hard(spec: HardMasking, columns: int) -> Drop:
    return Drop(spec.fill, min(spec.k, columns))


def _keys_below_p(leaf: Active, logits: Tensor) -> Tensor:
    shape, p, has_rows = LogitShape(*logits.shape), leaf.rate("p"), "rows" in leaf.spec.draws.over
    return leaf.below(shape, p) if has_rows else leaf.draw(shape).unsqueeze(-2) < p


def _drop_key(leaf: Active, logits: Tensor, visible: Tensor | None) -> Logits:
    return _hide(logits, visible, _dropped_keys(leaf, logits, visible))


def _dropped_keys(leaf: Active, logits: Tensor, visible: Tensor | None) -> Tensor:
    return regularisers.dropped_keys(logits, visible, _keys_below_p(leaf, logits))


def _observe_dropped(leaf: Active, logits: Tensor, visible: Tensor | None) -> Observed:
    return _observed(_keys_below_p(leaf, logits), logits, visible)


def _observed(below: Tensor, logits: Tensor, visible: Tensor | None) -> Observed:
    candidates = torch.ones_like(logits, dtype=torch.bool) if visible is None else visible.expand_as(logits)
    return Observed("drop", candidates & below, candidates)


def _drop_of_key(spec: DropKey, columns: int) -> Drop:
    return Drop("key" if spec.by == "element" else "column")


# --- blur and noise --------------------------------------------------------------------------------------------------


def blur_sigma(leaf: Active, shape: LogitShape, dtype: torch.dtype) -> Tensor:
    """The sigma of a blur leaf as [B or 1, H or 1]."""
    low, high = leaf.vector("sigma_min"), leaf.vector("sigma_max")
    uniform = drawn_uniforms(leaf, shape).to(dtype)
    sigma: Tensor = low + (high - low) * (uniform.view(1, -1) if leaf.spec.sampling == "head" else uniform.view(-1, 1))
    return sigma if leaf.gate is None else sigma * leaf.gate


def blur_kernel(leaf: Active, shape: LogitShape, dtype: torch.dtype) -> Tensor:
    """The kernel of a blur leaf as [B or 1, H or 1, width]."""
    spec: BlurSmoothing = leaf.spec
    is_one = spec.sampling == "batch" and leaf.groups == 1
    if is_one and leaf.gate is None and is_at_hand(leaf.seed) and _are_plain_numbers(leaf):
        return regularisers.gaussian_kernel_of_number(_one_sigma(leaf, dtype), spec.width, dtype)
    return regularisers.gaussian_kernel(blur_sigma(leaf, shape, dtype), spec.width)


def _are_plain_numbers(leaf: Active) -> bool:
    """Whether the rates of a leaf are numbers that can be read at no cost, and that need no gradient."""
    return all(value.ndim == 0 and is_at_hand(value) for value in leaf.values.values()) and not leaf.is_learned()


def _one_sigma(leaf: Active, dtype: torch.dtype) -> np.floating[Any]:
    """`blur_sigma` where one number serves all, computed without torch: the same steps in the same precision."""
    number = np.float64 if dtype == torch.float64 else np.float32
    uniform = hashing.uniforms(hashing.vector_words(hashing.stream_key(int(leaf.seed.item()), leaf.number), 1))[0]
    low, high = leaf.vector("sigma_min"), leaf.vector("sigma_max")
    if isinstance(low, float) and isinstance(high, float):
        return number(low) + number(high - low) * number(uniform)
    # A difference to a tensor has the precision of the tensor.
    least = number(float(low))
    return least + (number(float(high)) - least) * number(uniform)


def _blur(leaf: Active, logits: Tensor, visible: Tensor | None) -> Logits:
    spec: BlurSmoothing = leaf.spec
    kernel = blur_kernel(leaf, LogitShape(*logits.shape), logits.dtype)
    return regularisers.blur_smoothing(logits, visible, kernel, spec.axes, spec.edges)


def _observe_blur(leaf: Active, logits: Tensor, visible: Tensor | None) -> Observed:
    shape = LogitShape(*logits.shape)
    return Observed("sigma", blur_sigma(leaf, shape, logits.dtype).expand(shape.batch, shape.heads))


def _noise(leaf: Active, logits: Tensor, visible: Tensor | None) -> Logits:
    normal = leaf.draw(LogitShape(*logits.shape)).to(logits.dtype)
    return regularisers.gaussian_noise(logits, normal, leaf.rate("sigma")), visible


def _temperature(leaf: Active, logits: Tensor, visible: Tensor | None) -> Logits:
    normal = leaf.draw(LogitShape(*logits.shape)).to(logits.dtype)
    return regularisers.temperature_noise(logits, normal, leaf.gated("sigma")), visible


def _observe_sigma(leaf: Active, logits: Tensor, visible: Tensor | None) -> Observed:
    sigma = torch.as_tensor(leaf.rate("sigma"), dtype=logits.dtype, device=logits.device)
    return Observed("sigma", sigma.reshape(1, -1).expand(1, logits.shape[1]))


# --- after the softmax -----------------------------------------------------------------------------------------------


def _dropout(leaf: Active, weights: Tensor) -> Tensor:
    shape, p = LogitShape(*weights.shape), leaf.rate("p")
    if regularisers.is_learned(p):
        return regularisers.learned_attention_dropout(weights, leaf.draw(shape), p)
    return regularisers.attention_dropout(weights, _dropped_weights(leaf, weights, None), p)


def _dropped_weights(leaf: Active, logits: Tensor, visible: Tensor | None) -> Tensor:
    return leaf.below(LogitShape(*logits.shape), leaf.rate("p"))


def _blocks_below_p(leaf: Active, logits: Tensor) -> Tensor:
    return regularisers.by_block(_keys_below_p(leaf, logits), leaf.spec.span)


def _drop_attention(leaf: Active, weights: Tensor) -> Tensor:
    return regularisers.drop_attention(weights, _blocks_below_p(leaf, weights), LEAST_SHARE)


def _weights_of_attention(spec: DropAttention, columns: int) -> WeightDrop:
    return WeightDrop(True, spec.by == "column", max(1, min(spec.span, columns)))


def _observe_blocks(leaf: Active, logits: Tensor, visible: Tensor | None) -> Observed:
    return _observed(_blocks_below_p(leaf, logits), logits, visible)


def _drop_head(leaf: Active, shape: LogitShape, dtype: torch.dtype) -> Tensor:
    return regularisers.head_factors(drawn_uniforms(leaf, shape), leaf.gated("p"), dtype)


def _observe_drop_head(leaf: Active, logits: Tensor, visible: Tensor | None) -> Observed:
    return Observed("drop", _drop_head(leaf, LogitShape(*logits.shape), logits.dtype) == 0)


def _head_mask(leaf: Active, shape: LogitShape, dtype: torch.dtype) -> Tensor:
    factors = 1.0 - _masked_heads(leaf, shape, dtype)
    # The gradient of these factors is what makes a head important.
    return factors if leaf.spec.choice == "random" else leaf.state.watched(factors)


def _masked_heads(leaf: Active, shape: LogitShape, dtype: torch.dtype) -> Tensor:
    """1 for a masked head, [B, H]."""
    spec: HeadMask = leaf.spec
    if spec.count >= shape.heads:
        raise bad_argument("count", f"fewer than the {shape.heads} heads of the attention", spec.count)
    if spec.choice == "random":
        scores = drawn_uniforms(leaf, shape)
    elif leaf.state is None:
        raise bad_argument("choice", "'random' without attach, which keeps the importance of heads", spec.choice)
    else:
        scores = leaf.state.of_call(leaf.seed, shape.heads).expand(shape.batch, -1)
    masked = regularisers.top_k(scores, None, spec.count).to(dtype)
    return masked if leaf.gate is None else leaf.gate * masked


def _observe_head_mask(leaf: Active, logits: Tensor, visible: Tensor | None) -> Observed:
    return Observed("drop", _masked_heads(leaf, LogitShape(*logits.shape), logits.dtype))


TABLE: dict[type[Spec], Regulariser] = {
    HardMasking: Regulariser(_hard, _observe_hard, Stage("drop", "p", _why_not_hard, _drop_of_hard), _dropped_largest),
    BlurSmoothing: Regulariser(_blur, _observe_blur, Stage("blur", "sigma_max")),
    GaussianNoise: Regulariser(_noise, _observe_sigma, Stage("noise", "sigma")),
    TemperatureNoise: Regulariser(_temperature, _observe_sigma),
    DropKey: Regulariser(_drop_key, _observe_dropped, Stage("drop", "p", drop=_drop_of_key), _dropped_keys),
    AttentionDropout: Regulariser(_dropout, _observe_dropped, Stage("dropout", "p"), _dropped_weights),
    DropAttention: Regulariser(_drop_attention, _observe_blocks, Stage("dropout", "p", weights=_weights_of_attention)),
    DropHead: Regulariser(_drop_head, _observe_drop_head, Stage("heads", "p")),
    HeadMask: Regulariser(_head_mask, _observe_head_mask, Stage("heads", "count")),
}
