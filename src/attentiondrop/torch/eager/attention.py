"""The path that serves every regulariser on any device: it materialises the logits, and so defines correctness."""

from __future__ import annotations

import torch
from torch import Tensor

from ...specs import AttentionDropout, BlurSmoothing, DropHead, DropKey, GaussianNoise, HardMasking
from ..call.inputs import Inputs, repeat_heads
from ..call.leaves import DROPOUT_STREAM, Active, LogitShape, blur_sigma
from ..call.visibility import Visibility
from ..draws import Stream
from . import regularisers


def eager_attention(
    inputs: Inputs,
    leaves: list[Active],
    visibility: Visibility,
    bias: Tensor | None,
    seed: Tensor | None,
    dropout_p: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Output [B, H, N, E] in the dtype of the inputs, and the weights that made it in the compute dtype."""
    dtype = inputs.compute_dtype
    heads = inputs.shape.heads
    q, k, v = inputs.q.to(dtype), repeat_heads(inputs.k.to(dtype), heads), repeat_heads(inputs.v.to(dtype), heads)
    logits = (q * inputs.scale) @ k.transpose(-1, -2)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias.to(dtype)
    visible = visibility.dense(inputs.shape.rows, inputs.shape.columns, q.device)
    weights = perturbed_weights(logits, visible, leaves, seed, dropout_p, sinks)
    return (weights @ v).to(inputs.q.dtype), weights


def perturbed_weights(
    logits: Tensor,
    visible: Tensor | None,
    leaves: list[Active],
    seed: Tensor | None,
    dropout_p: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """From logits to attention weights through every regulariser: logit level, softmax, weight level, head level."""
    shape = LogitShape(*logits.shape)
    for leaf in leaves:
        if leaf.spec.level == "logits":
            logits, visible = perturb_logits(leaf, logits, visible)
    weights = regularisers.masked_softmax(logits, visible, sinks)
    for leaf in leaves:
        if isinstance(leaf.spec, AttentionDropout):
            weights = regularisers.attention_dropout(weights, leaf.draw(shape), leaf.rate("p"))
    if dropout_p > 0 and seed is not None:
        uniform = Stream(seed, DROPOUT_STREAM).uniforms(*weights.shape)
        weights = regularisers.attention_dropout(weights, uniform, dropout_p)
    for leaf in leaves:
        if isinstance(leaf.spec, DropHead):
            weights = weights * head_factors(leaf, shape, weights.dtype)
    return weights


def perturb_logits(leaf: Active, logits: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """One logit-level regulariser with its fields taken from the spec."""
    spec, shape = leaf.spec, LogitShape(*logits.shape)
    if isinstance(spec, HardMasking):
        by_rank = spec.heads == "stratified"
        return regularisers.hard_masking(logits, visible, leaf.draw(shape), leaf.rate("p"), spec.k, spec.fill, by_rank)
    if isinstance(spec, BlurSmoothing):
        kernel = regularisers.gaussian_kernel(blur_sigma(leaf, shape, logits.dtype), spec.width)
        return regularisers.blur_smoothing(logits, visible, kernel, spec.axes, spec.edges)
    if isinstance(spec, GaussianNoise):
        return regularisers.gaussian_noise(logits, leaf.draw(shape).to(logits.dtype), leaf.rate("sigma")), visible
    if isinstance(spec, DropKey):
        return regularisers.drop_key(logits, visible, leaf.draw(shape), leaf.rate("p"))
    raise TypeError(f"no torch function for the logit-level spec {spec}")


def head_factors(leaf: Active, shape: LogitShape, dtype: torch.dtype) -> Tensor:
    """The factors of a `DropHead` leaf, shaped to multiply [B, H, N, E] or [B, H, N, M]."""
    p = leaf.vector("p") if leaf.gate is None else leaf.gate * leaf.vector("p")
    return regularisers.head_factors(leaf.draw(shape), p, dtype)[:, :, None, None]
