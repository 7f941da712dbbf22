"""Attention as people also write it: one small module for each form that is easily missed."""

from __future__ import annotations

import functools
from typing import Any

import torch
from elsewhere import attend_elsewhere, level_one
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention as sdpa


class Heads(nn.Module):
    """Queries, keys and values in four heads; what attends is for subclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.mix(q, k, v).transpose(1, 2).flatten(-2))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Plain(Heads):
    """What is reached beside the others."""


class OtherName(Heads):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v)


class InAttribute(Heads):
    def __init__(self) -> None:
        super().__init__()
        self.function = F.scaled_dot_product_attention

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.function(q, k, v)


class InPartial(Heads):
    def __init__(self) -> None:
        super().__init__()
        self.function = functools.partial(F.scaled_dot_product_attention, is_causal=True)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.function(q, k, v)


class InClassAttribute(Heads):
    function = staticmethod(F.scaled_dot_product_attention)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.function(q, k, v)


class OtherPackage(Heads):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_elsewhere(q, k, v)


class ManyCallsDeep(Heads):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return level_one(q, k, v)


class InTable(Heads):
    """Nothing in the code says what the table holds: found by running."""

    table = {"attention": F.scaled_dot_product_attention}

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.table["attention"](q, k, v)


class InlineSoftmax(Heads):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / 2, dim=-1) @ v


class SoftmaxModule(Heads):
    def __init__(self) -> None:
        super().__init__()
        self.normalise = nn.Softmax(dim=-1)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhnm,bhmd->bhnd", self.normalise(torch.einsum("bhnd,bhmd->bhnm", q, k)), v)


class ExpAndSum(Heads):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1)
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        return (e / e.sum(-1, keepdim=True)) @ v


class NormalisedLast(Heads):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = torch.exp(torch.matmul(q, k.mT))
        return torch.matmul(e, v) / e.sum(dim=-1, keepdim=True)


class Flex(Heads):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        result: Any = flex_attention(q, k, v)
        return result


class MultiHeadFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 48)
        self.outer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(0, 1)
        weights = self.inner.weight, self.inner.bias, None, None, False, 0.0, self.outer.weight, self.outer.bias
        return F.multi_head_attention_forward(y, y, y, 16, 4, *weights, need_weights=False)[0].transpose(0, 1)


class MultiHeadSubclass(nn.MultiheadAttention):
    def __init__(self) -> None:
        super().__init__(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


REACHED = [
    *(OtherName, InAttribute, InPartial, InClassAttribute, OtherPackage, ManyCallsDeep),
    *(MultiHeadFunction, MultiHeadSubclass),
]
REPORTED = [InTable, InlineSoftmax, SoftmaxModule, ExpAndSum, NormalisedLast, Flex]
