"""Settings of a blur, and what it should give: shared by the tests of its kernels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attentiondrop.torch.draws import Stream
from attentiondrop.torch.eager import regularisers

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class Setting:
    """How a blur is drawn, and what it meets."""

    width: int = 5
    renormalize: bool = False
    sampling: str = "batch"
    visible: str = ""
    gate: float | None = None
    sigma: tuple[float, float] = (0.3, 1.5)
    stream: int = 3
    groups: int = 1

    def sigma_arguments(self) -> tuple[Any, ...]:
        return self.stream, self.sampling, *self.sigma, self.width, self.renormalize, self.groups

    def tensors(self, device: str, batch: int, heads: int, length: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Seed, gate and visibility."""
        seed = torch.randint(0, 2**63 - 1, ()).to(device)
        gate = None if self.gate is None else torch.tensor(self.gate, device=device)
        if not self.visible:
            return seed, gate, None
        visible = torch.rand(batch, heads if self.visible == "heads" else 1, 1, length) < 0.6
        visible[0, :, :, :2] = False  # a causal row that sees nothing
        if self.visible == "strided":
            wide = torch.zeros(batch, 1, length, 2, dtype=torch.bool)
            wide[..., 1] = visible.squeeze(2)
            visible = wide[..., 1].unsqueeze(2)
        elif self.visible == "shared":
            visible = visible[:1]
        elif self.visible == "nothing":
            visible[-1] = False
        return seed, gate, visible.to(device)

    def kernel(self, seed: Tensor, gate: Tensor | None, batch: int, heads: int) -> Tensor:
        """The weights that the kernels make for themselves, in float64."""
        count = {"batch": self.groups, "sample": batch, "head": heads}[self.sampling]
        uniform = Stream(seed, self.stream).uniform_vector(count).double()
        if self.sampling == "batch":
            uniform = uniform.repeat_interleave(batch // self.groups)
        sigma = self.sigma[0] + (self.sigma[1] - self.sigma[0]) * uniform
        sigma = sigma if gate is None else sigma * gate.double()
        return regularisers.gaussian_kernel(sigma[None] if self.sampling == "head" else sigma[:, None], self.width)

    @property
    def edges(self) -> str:
        return "renormalize" if self.renormalize else "zero"


def error(have: Tensor, want: Tensor) -> float:
    have, want = have.detach().double(), want.detach()
    assert have.shape == want.shape
    assert bool(have.isfinite().all())
    return float((have - want).norm() / want.norm()) if want.any() else float(have.norm())


def rounded_error(want: Tensor, dtype: torch.dtype) -> float:
    """What a float32 computation and one rounding would leave."""
    exact = want.detach().float()
    if INTERPRETED and dtype == torch.bfloat16:
        # Triton's interpreter cuts float32 off where a GPU rounds it.
        return error((exact.view(torch.int32) & -(2**16)).view(torch.float32), want)
    return error(exact.to(dtype), want)


def normal(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype).to(device)


def blurred(x: Tensor, setting: Setting, seed: Tensor, gate: Tensor | None, visible: Tensor | None) -> Tensor:
    """The blur in float64."""
    kernel = setting.kernel(seed, gate, *x.shape[:2])
    return regularisers.convolve_keys(x.double(), visible, kernel, setting.edges)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a causal attention."""

    batch: int = 1
    heads: int = 2
    key_heads: int = 2
    rows: int = 9
    columns: int = 9
    size: int = 5
    value_size: int = 3

    def make(self, device: str, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        """Queries, keys and values, the first two with tokens first in memory; and a gradient of the output."""
        q = normal(self.batch, self.rows, self.heads, self.size, device=device, dtype=dtype).transpose(1, 2)
        k = normal(self.batch, self.columns, self.key_heads, self.size, device=device, dtype=dtype).transpose(1, 2)
        v = normal(self.batch, self.key_heads, self.columns, self.value_size, device=device, dtype=dtype)
        grad = normal(self.batch, self.heads, self.rows, self.value_size, device=device, dtype=dtype)
        return [x.requires_grad_() for x in (q, k, v)], grad
