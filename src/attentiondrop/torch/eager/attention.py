"""The path that serves every regulariser on any device. It builds the logits; the fused paths must agree with it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..call.inputs import repeat_heads
from ..call.leaves import DROPOUT_STREAM, Active, LogitShape
from ..call.one_call import Call
from ..draws import Stream
from . import regularisers
from .table import entry_of


def eager_attention(call: Call) -> tuple[Tensor, Tensor]:
    """Output [B, H, N, E] in the dtype of the inputs, and the weights that made it in the compute dtype."""
    inputs, softcap = call.inputs, call.softcap
    dtype = inputs.compute_dtype
    heads = inputs.shape.heads
    q, k, v = inputs.q.to(dtype), repeat_heads(inputs.k.to(dtype), heads), repeat_heads(inputs.v.to(dtype), heads)
    logits = (q * inputs.scale) @ k.transpose(-1, -2)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if call.bias is not None:
        logits = logits + call.bias.to(dtype)
    visible = call.visibility.dense(inputs.shape.rows, inputs.shape.columns, q.device)
    weights = perturbed_weights(logits, visible, call.leaves, call.seed, call.dropout_p, call.sinks)
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
            logits, visible = entry_of(leaf.spec).apply(leaf, logits, visible)
    weights = regularisers.masked_softmax(logits, visible, sinks)
    for leaf in leaves:
        if leaf.spec.level == "weights":
            weights = entry_of(leaf.spec).apply(leaf, weights)
    if dropout_p > 0 and seed is not None:
        uniform = Stream(seed, DROPOUT_STREAM).uniforms(*weights.shape)
        weights = regularisers.attention_dropout(weights, uniform, dropout_p)
    for leaf in leaves:
        if leaf.spec.level == "heads":
            weights = weights * head_factors(leaf, shape, weights.dtype)
    return weights


def head_factors(leaf: Active, shape: LogitShape, dtype: torch.dtype) -> Tensor:
    """The factors of a head-level leaf, shaped to multiply [B, H, N, E] or [B, H, N, M]."""
    factors: Tensor = entry_of(leaf.spec).apply(leaf, shape, dtype)
    return factors[:, :, None, None]
