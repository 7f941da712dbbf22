"""From one seed to the draws of every regulariser in a spec, in the form that `attentiondrop.reference` takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import bad_argument
from ..specs import (
    AttentionDropout,
    BlurSmoothing,
    Compose,
    Consistency,
    DropHead,
    DropKey,
    GaussianNoise,
    HardMasking,
    OneOf,
    Spec,
)
from .random import Stream

#: The stream of SDPA's own `dropout_p`, out of reach of the numbers that regularisers get.
DROPOUT_STREAM = 2**20


class LogitShape(NamedTuple):
    """The shape of the logits that the draws are for."""

    batch: int
    heads: int
    rows: int
    columns: int


class Active(NamedTuple):
    """One regulariser of a call. `gate` is None, or a 0-dim tensor, 0 when `OneOf` chose another one."""

    spec: Any
    draw: Tensor
    gate: Tensor | None

    def rate(self, value: float) -> float | Tensor:
        """`value`, switched off by the gate: every regulariser is the identity at rate 0."""
        return value if self.gate is None else self.gate * value


def sample(spec: Spec, seed: Tensor, shape: LogitShape) -> Any:
    """The draws of one call. Each regulariser has a stream of its own, numbered by its place in the spec."""
    return _sample(spec, seed, shape, _Counter())


class _Counter:
    """Hands out stream numbers in the order in which a spec is walked."""

    def __init__(self) -> None:
        self.next = 0

    def take(self) -> int:
        self.next += 1
        return self.next - 1


def _sample(spec: Spec, seed: Tensor, shape: LogitShape, counter: _Counter) -> Any:
    if isinstance(spec, Compose):
        return [_sample(part, seed, shape, counter) for part in spec.parts]
    if isinstance(spec, OneOf):
        choice = Stream(seed, counter.take()).uniform_vector(1)[0]
        return choice, [_sample(part, seed, shape, counter) for part in spec.parts]
    if isinstance(spec, Consistency):
        return None
    stream = Stream(seed, counter.take())
    if isinstance(spec, HardMasking | DropKey | AttentionDropout):
        return stream.uniforms(*shape)
    if isinstance(spec, GaussianNoise):
        return stream.normals(*shape)
    if isinstance(spec, BlurSmoothing):
        if spec.sampling == "batch":
            return stream.uniform_vector(1)[0]
        return stream.uniform_vector(shape.batch if spec.sampling == "sample" else shape.heads)
    if isinstance(spec, DropHead):
        return stream.uniform_vector(shape.batch * shape.heads).view(shape.batch, shape.heads)
    raise bad_argument("spec", "a spec that attentiondrop.torch can compute", spec)


def active_leaves(spec: Spec, draws: Any, dtype: torch.dtype, gate: Tensor | None = None) -> list[Active]:
    """The regularisers with their draws in one flat list. All parts of a `OneOf` are in it, gated by its choice.

    `dtype` is that of the logits: a gated rate must not be less exact than a plain one.

    Gates instead of a branch: the choice stays on the device, so nothing synchronises and a compiled or captured graph
    chooses anew in each replay.
    """
    if isinstance(spec, Consistency):
        return []
    if isinstance(spec, Compose):
        pairs = zip(spec.parts, draws, strict=True)
        return [leaf for part, draw in pairs for leaf in active_leaves(part, draw, dtype, gate)]
    if isinstance(spec, OneOf):
        choice, parts = draws
        leaves: list[Active] = []
        below, last = 0.0, len(spec.parts) - 1
        for index, (part, draw) in enumerate(zip(spec.parts, parts, strict=True)):
            above = below + spec.weights[index]
            # The last interval is open above, so that rounding of the sum leaves no gap.
            chosen = (choice >= below) if index == last else (choice >= below) & (choice < above)
            chosen = chosen.to(dtype)
            leaves += active_leaves(part, draw, dtype, chosen if gate is None else gate * chosen)
            below = above
        return leaves
    return [Active(spec, draws, gate)]


def blur_sigma(leaf: Active, dtype: torch.dtype) -> Tensor:
    """The sigma of a blur leaf as [B or 1, H or 1]."""
    spec: BlurSmoothing = leaf.spec
    sigma = spec.sigma_min + (spec.sigma_max - spec.sigma_min) * leaf.draw.to(dtype)
    if leaf.gate is not None:
        sigma = sigma * leaf.gate
    return sigma.view(-1, 1) if spec.sampling == "sample" else sigma.view(1, -1)
