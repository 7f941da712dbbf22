"""The LSH attention of transformers' Reformer in the place of timm's attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from ...errors import ArgumentError

#: The seed of the hashes in evaluation, so that a model has one output.
_EVALUATION_SEED = 0


class LSHAttention(nn.Module):
    """Reformer's LSH attention with the projections of a timm `Attention`: queries and keys share that of the queries.

    Hashes are drawn anew in every pass of training, and are always the same in evaluation.
    """

    def __init__(self, attention: Any, chunk: int, hashes: int) -> None:
        super().__init__()
        width = attention.qkv.weight.shape[1]
        config = ReformerConfig(
            attention_head_size=attention.head_dim,
            hidden_size=width,
            num_attention_heads=attention.num_heads,
            lsh_attn_chunk_length=chunk,
            num_hashes=hashes,
            lsh_num_chunks_before=1,
            lsh_num_chunks_after=1,
            lsh_attention_probs_dropout_prob=0.0,
        )
        self.chunk = chunk
        self.lsh = LSHSelfAttention(config)
        query, _, value = attention.qkv.weight.detach().chunk(3)
        self.lsh.query_key.weight.data.copy_(query)
        self.lsh.value.weight.data.copy_(value)
        self.proj, self.proj_drop = attention.proj, attention.proj_drop

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Pad the tokens to whole chunks, attend, and project."""
        if attn_mask is not None or is_causal:
            raise ArgumentError("lsh: expected attention without a mask")
        batch, tokens, _ = x.shape
        length = math.ceil(tokens / self.chunk) * self.chunk
        padded = nn.functional.pad(x, (0, 0, 0, length - tokens))
        real = torch.arange(length, device=x.device) < tokens
        # As transformers sets it, but without its warning. The number must be even.
        self.lsh.num_buckets = 2 * (length // self.chunk)
        if self.training:
            found = self.lsh(padded, attention_mask=real.expand(batch, length))
        else:
            with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
                torch.manual_seed(_EVALUATION_SEED)
                found = self.lsh(padded, attention_mask=real.expand(batch, length))
        out: Tensor = self.proj_drop(self.proj(found.hidden_states[:, :tokens]))
        return out
