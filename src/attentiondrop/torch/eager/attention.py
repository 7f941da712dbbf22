"""The path that serves every regulariser on any device. It builds the logits; the fused paths must agree with it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..call.inputs import repeat_heads
from ..call.leaves import DROPOUT_STREAM, Active, LogitShape
from ..call.one_call import Call
from ..draws import Stream
from . import regularisers
from .one_node import alone, attention_in_one_node
from .table import entry_of


def eager_attention(call: Call) -> tuple[Tensor, Tensor]:
    """Output [B, H, N, E] in the dtype of the inputs, and the weights that made it in the compute dtype."""
    leaf = alone(call)
    if leaf is not None:
        return attention_in_one_node(call, leaf)
    inputs, softcap = call.inputs, call.softcap
    dtype = inputs.compute_dtype
    q, k, v = inputs.q, inputs.k, inputs.v
    if q.dtype != dtype:
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    heads = q.shape[1]
    k, v = repeat_heads(k, heads), repeat_heads(v, heads)
    logits = (q * inputs.scale) @ k.transpose(-1, -2)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if call.bias is not None:
        logits = logits + call.bias.to(dtype)
    visible = call.visibility.dense(q.shape[2], k.shape[2], q.device)
    weights = perturbed_weights(logits, visible, call.leaves, call.seed, call.dropout_p, call.sinks)
    output = weights @ v
    return output if inputs.q.dtype == dtype else output.to(inputs.q.dtype), weights


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
        below = Stream(seed, DROPOUT_STREAM).below(shape, dropout_p)
        weights = regularisers.attention_dropout(weights, below, dropout_p)
    for leaf in leaves:
        if leaf.spec.level == "heads":
            weights = weights * head_factors(leaf, shape, weights.dtype)
    return weights


def head_factors(leaf: Active, shape: LogitShape, dtype: torch.dtype) -> Tensor:
    """The factors of a head-level leaf, shaped to multiply [B, H, N, E] or [B, H, N, M]."""
    factors: Tensor = entry_of(leaf.spec).apply(leaf, shape, dtype)
    return factors[:, :, None, None]
