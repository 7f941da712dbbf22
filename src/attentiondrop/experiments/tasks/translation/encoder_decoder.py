"""An encoder-decoder Transformer, as in "Attention Is All You Need", on PyTorch's attention function.

`attach` finds its attention and knows its kind. With its default settings the model is fairseq's: normalisation after
each sum, sinusoidal positions, one embedding for source, target and output, and fairseq's initial weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....errors import ShapeError
from ..text.subwords import PAD

#: The longest sentence, in subwords.
MOST_POSITIONS = 4096


@dataclass
class Seen:
    """Keys and values of one attention module, from earlier steps of a search or from the source: [B, H, N, D]."""

    keys: Tensor
    values: Tensor


@dataclass
class Cache:
    """What the decoder remembers during a search: for each layer, its own earlier steps and the source."""

    own: list[Seen | None] = field(default_factory=list)
    source: list[Seen | None] = field(default_factory=list)
    #: How many subwords were decoded.
    steps: int = 0

    @classmethod
    def empty(cls, layers: int) -> Cache:
        """Nothing was decoded yet."""
        return cls([None] * layers, [None] * layers)

    def reorder(self, rows: Tensor) -> None:
        """Continue with these rows of the batch. Each must translate the same source as the row that it replaces."""
        self.own = [seen and Seen(seen.keys[rows], seen.values[rows]) for seen in self.own]


class Attention(nn.Module):
    """Attention of several heads. `attention_kind` tells `attach` what it is."""

    def __init__(self, width: int, heads: int, kind: str) -> None:
        super().__init__()
        self.heads, self.attention_kind = heads, kind
        self.queries = nn.Linear(width, width)
        self.keys_values = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        for weight in (self.queries.weight, *self.keys_values.weight.data.chunk(2)):
            nn.init.xavier_uniform_(weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.output.weight)
        for layer in (self.queries, self.keys_values, self.output):
            nn.init.zeros_(layer.bias)

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        seen: Seen | None = None,
    ) -> Tensor:
        """Attend from `x` [B, N, W] to itself, to `source`, or to what was `seen`, which then is all there is to see.

        `mask` [B, 1, 1, M] is True where there is something to see.
        """
        if seen is None:
            seen = self.look(x if source is None else source)
        attended = F.scaled_dot_product_attention(
            self._split(self.queries(x)), seen.keys, seen.values, attn_mask=mask, is_causal=causal
        )
        output: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return output

    def look(self, x: Tensor, before: Seen | None = None) -> Seen:
        """The keys and values of `x`, after those that were seen `before`."""
        keys, values = map(self._split, self.keys_values(x).chunk(2, dim=-1))
        if before is not None:
            keys, values = torch.cat([before.keys, keys], dim=2), torch.cat([before.values, values], dim=2)
        return Seen(keys, values)

    def _split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, -1))
        return heads.transpose(1, 2)


class Residual(nn.Module):
    """The normalisation and the sum around a sublayer."""

    def __init__(self, width: int, dropout: float, drop_path: float, pre: bool) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.drop_path = _drop_path(drop_path)
        self.pre = pre

    def before(self, x: Tensor) -> Tensor:
        """The input of the sublayer."""
        return self.norm(x) if self.pre else x

    def forward(self, x: Tensor, output: Tensor) -> Tensor:
        """The sum of the sublayer's `output` and `x`."""
        total: Tensor = x + self.drop_path(self.dropout(output))
        return total if self.pre else self.norm(total)


def _drop_path(rate: float) -> nn.Module:
    """Stochastic depth. timm takes seconds to import, so it is imported only where it is used."""
    if rate == 0.0:
        return nn.Identity()
    from timm.layers import DropPath

    found: nn.Module = DropPath(rate)
    return found


class FeedForward(nn.Sequential):
    """Two linear layers with a ReLU between them."""

    def __init__(self, width: int, inner: int) -> None:
        layers = nn.Linear(width, inner), nn.Linear(inner, width)
        super().__init__(layers[0], nn.ReLU(), layers[1])
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward part."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float, drop_path: float, pre: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, "encoder")
        self.feedforward = FeedForward(width, inner)
        self.first, self.second = (Residual(width, dropout, drop_path, pre) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, N, W]; `mask` as in `Attention`."""
        x = self.first(x, self.attention(self.first.before(x), mask=mask))
        output: Tensor = self.second(x, self.feedforward(self.second.before(x)))
        return output


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, then the feed-forward part."""

    def __init__(self, width: int, inner: int, heads: int, dropout: float, drop_path: float, pre: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, "decoder")
        self.cross_attention = Attention(width, heads, "cross")
        self.feedforward = FeedForward(width, inner)
        self.first, self.second, self.third = (Residual(width, dropout, drop_path, pre) for _ in range(3))

    def forward(self, x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        """All positions at once. Padding comes last in a sentence, so no position before it can see it."""
        x = self.first(x, self.attention(self.first.before(x), causal=True))
        x = self.second(x, self.cross_attention(self.second.before(x), source, mask))
        output: Tensor = self.third(x, self.feedforward(self.third.before(x)))
        return output

    def step(self, x: Tensor, source: Tensor, mask: Tensor, cache: Cache, layer: int) -> Tensor:
        """One more position, [B, 1, W]."""
        own = cache.own[layer] = self.attention.look(self.first.before(x), cache.own[layer])
        x = self.first(x, self.attention(self.first.before(x), seen=own))
        seen = cache.source[layer]
        if seen is None:
            seen = cache.source[layer] = self.cross_attention.look(source)
        x = self.second(x, self.cross_attention(self.second.before(x), mask=mask, seen=seen))
        output: Tensor = self.third(x, self.feedforward(self.third.before(x)))
        return output


class EncoderDecoder(nn.Module):
    """The model: subwords of a source and of a target in, logits of the next target subwords out."""

    def __init__(
        self,
        vocabulary: int,
        layers: int,
        width: int,
        inner: int,
        heads: int,
        dropout: float = 0.1,
        drop_path: float = 0.0,
        pre: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        with torch.no_grad():
            self.embedding.weight[PAD].zero_()
        self.scale = math.sqrt(width)
        self.dropout = nn.Dropout(dropout)
        # Deeper layers are dropped more often, as in timm.
        rates = [drop_path * layer / max(1, layers - 1) for layer in range(layers)]
        self.encoder = nn.ModuleList(EncoderLayer(width, inner, heads, dropout, rate, pre) for rate in rates)
        self.decoder = nn.ModuleList(DecoderLayer(width, inner, heads, dropout, rate, pre) for rate in rates)
        # With the normalisation inside of the sublayers, nothing has normalised their sum.
        self.encoder_norm = nn.LayerNorm(width) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width) if pre else nn.Identity()
        self.positions: Tensor
        self.register_buffer("positions", sinusoids(MOST_POSITIONS, width), persistent=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits [B, T, V] for subwords `source` [B, S] and `target` [B, T], which begins with BEGIN."""
        memory, mask = self.encode(source)
        return self.decode(target, memory, mask)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The encoded source [B, S, W], and the mask [B, 1, 1, S] of what is no padding."""
        mask = (source != PAD)[:, None, None]
        x = self._embed(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def decode(self, target: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Logits [B, T, V] of all positions."""
        x = self._embed(target)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return self._logits(x)

    def step(self, target: Tensor, memory: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        """Logits [B, V] after one more subword of each row, `target` [B]. `cache` grows by it."""
        x = self._embed(target[:, None], cache.steps)
        for number, layer in enumerate(self.decoder):
            x = layer.step(x, memory, mask, cache, number)  # type: ignore[operator]
        cache.steps += 1
        return self._logits(x)[:, 0]

    def _embed(self, tokens: Tensor, start: int = 0) -> Tensor:
        end = start + tokens.shape[1]
        if end > MOST_POSITIONS:
            raise ShapeError(f"a sentence: expected at most {MOST_POSITIONS} subwords, received {end}")
        x = self.embedding(tokens) * self.scale + self.positions[start:end]
        dropped: Tensor = self.dropout(x)
        return dropped

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.decoder_norm(x), self.embedding.weight)


def sinusoids(length: int, width: int) -> Tensor:
    """Positions [length, width]: sines in the first half of the columns, cosines in the second."""
    half = width // 2
    rates = torch.exp(torch.arange(half) * -(math.log(10_000.0) / max(1, half - 1)))
    angles = torch.arange(length)[:, None] * rates[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)
