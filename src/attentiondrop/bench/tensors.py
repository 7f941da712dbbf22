"""Inputs of an attention, and one forward and backward of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .shapes import Shape

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Tensors(NamedTuple):
    """Queries, keys and values, which require gradients, and the gradient of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The arguments of an attention call."""
        return self.q, self.k, self.v

    def cut(self, part: Shape, dtype: torch.dtype | None = None) -> Tensors:
        """Copies of the first samples and heads, and of the first rows, in another dtype if wanted."""

        def copy(x: Tensor, heads: int) -> Tensor:
            return x.detach()[: part.batch, :heads, : part.length].to(dtype or x.dtype, copy=True)

        q, grad = copy(self.q, part.heads), copy(self.grad, part.heads)
        k, v = copy(self.k, part.key_heads), copy(self.v, part.key_heads)
        return Tensors(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad)


class Step(NamedTuple):
    """What one forward and backward gives."""

    output: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def make_tensors(shape: Shape, device: str, dtype: torch.dtype, seed: int = 0) -> Tensors:
    """Normal inputs, the same for the same seed on the same device."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(heads: int) -> Tensor:
        size = (shape.batch, heads, shape.length, shape.size)
        return torch.randn(size, generator=generator, device=device, dtype=dtype)

    q, k, v = (normal(heads).requires_grad_() for heads in (shape.heads, shape.key_heads, shape.key_heads))
    return Tensors(q, k, v, normal(shape.heads))


def forward_backward(attend: Attend, tensors: Tensors, seed: int | None = None) -> Step:
    """One forward and backward, after `torch.manual_seed` if a seed is given."""
    if seed is not None:
        torch.manual_seed(seed)
    output = attend(*tensors.inputs)
    return Step(output.detach(), *torch.autograd.grad(output, tensors.inputs, tensors.grad))
