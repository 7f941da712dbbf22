"""How Keras computes each regulariser: one entry for each. A spec without an entry is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from keras import ops

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
from . import regularisers
from .leaves import Leaf

Tensor = Any


class Regulariser(NamedTuple):
    """One entry. The arguments of `apply` depend on the level of the spec.

    "logits": (leaf, logits, visible) -> (logits, visible). "weights": (leaf, weights) -> weights. "heads":
    (leaf, dtype) -> factors [B, H].
    """

    apply: Callable[..., Any]
    #: How it runs around the backend's fused attention: by blurring keys, or by factors on heads. None if it cannot.
    stage: Literal["blur", "heads"] | None = None


def entry_of(spec: Spec) -> Regulariser:
    """The entry of a regulariser."""
    if type(spec) not in TABLE:
        raise bad_argument("spec", "a spec that attentiondrop.keras can compute", str(spec))
    return TABLE[type(spec)]


def _hard(leaf: Leaf, logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return regularisers.hard_masking(logits, visible, leaf.draw, leaf.rate("p"), leaf.spec.k, leaf.spec.fill)


def _blur(leaf: Leaf, logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    spec: BlurSmoothing = leaf.spec
    kernel = regularisers.gaussian_kernel(leaf.sigma(logits.dtype), spec.width)
    return regularisers.blur_smoothing(logits, visible, kernel, spec.axes, spec.edges), visible


def _noise(leaf: Leaf, logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    normal = ops.cast(leaf.draw, logits.dtype)
    return regularisers.gaussian_noise(logits, normal, leaf.rate("sigma", logits.dtype)), visible


def _temperature(leaf: Leaf, logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    normal = ops.cast(leaf.draw, logits.dtype)
    return regularisers.temperature_noise(logits, normal, leaf.rate("sigma", logits.dtype)), visible


def _drop_key(leaf: Leaf, logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    uniform = leaf.draw if leaf.spec.by == "element" else ops.expand_dims(leaf.draw, -2)
    return regularisers.drop_key(logits, visible, uniform, leaf.rate("p"))


def _dropout(leaf: Leaf, weights: Tensor) -> Tensor:
    return regularisers.attention_dropout(weights, leaf.draw, leaf.rate("p", weights.dtype))


def _drop_attention(leaf: Leaf, weights: Tensor) -> Tensor:
    uniform = leaf.draw if leaf.spec.by == "element" else ops.expand_dims(leaf.draw, -2)
    dropped = regularisers.by_block(uniform < leaf.rate("p"), leaf.spec.span)
    return regularisers.drop_attention(weights, dropped, LEAST_SHARE)


def _drop_head(leaf: Leaf, dtype: Any) -> Tensor:
    return regularisers.head_factors(leaf.draw, leaf.rate("p"), dtype)


def _head_mask(leaf: Leaf, dtype: Any) -> Tensor:
    spec: HeadMask = leaf.spec
    heads = leaf.draw.shape[-1]
    if heads is not None and spec.count >= heads:
        raise bad_argument("count", f"fewer than the {heads} heads of the attention", spec.count)
    masked = ops.cast(regularisers.top_k(leaf.draw, None, spec.count), dtype)
    return 1.0 - (masked if leaf.gate is None else ops.cast(leaf.gate, dtype) * masked)


TABLE: dict[type[Spec], Regulariser] = {
    HardMasking: Regulariser(_hard),
    BlurSmoothing: Regulariser(_blur, "blur"),
    GaussianNoise: Regulariser(_noise),
    TemperatureNoise: Regulariser(_temperature),
    DropKey: Regulariser(_drop_key),
    AttentionDropout: Regulariser(_dropout),
    DropAttention: Regulariser(_drop_attention),
    DropHead: Regulariser(_drop_head, "heads"),
    HeadMask: Regulariser(_head_mask, "heads"),
}
