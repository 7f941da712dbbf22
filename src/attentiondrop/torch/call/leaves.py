"""From one seed to the draws of every regulariser in a spec, in the form that `attentiondrop.reference` takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import bad_argument
from ...schedules import PerHead
from ...specs import (
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
from ..draws import Stream
from ..rates.learned import LearnedRate

#: The stream of SDPA's own `dropout_p`, out of reach of the numbers that regularisers get.
DROPOUT_STREAM = 2**20


class LogitShape(NamedTuple):
    """The shape of the logits that the draws are for."""

    batch: int
    heads: int
    rows: int
    columns: int


#: Number of a regulariser -> field -> its value as a tensor, 0-dim or one entry for each head; or what gives one.
Values = Mapping[int, dict[str, Tensor | LearnedRate]]


class Driven(NamedTuple):
    """A spec some of whose rates live in tensors, which change without anybody noticing but the computation.

    `bounds` are what these rates never exceed: a path is chosen by them, since nobody waits for a tensor.
    """

    spec: Spec
    values: Values
    bounds: Mapping[int, dict[str, float]] = {}


class Excerpt(NamedTuple):
    """Some rows of the first samples of a larger call, whose draws they share."""

    whole: LogitShape
    rows: Tensor


class Active(NamedTuple):
    """One regulariser of a call, with where its draws come from: nothing is drawn before a path asks for it.

    `gate` is None, or a 0-dim tensor, 0 when `OneOf` chose another one. `branches` are the (stream number of a `OneOf`,
    index of its part) that lead to the leaf. `values` are the fields that are tensors, in the dtype of the logits;
    `bounds` are numbers that they never exceed.
    """

    spec: Any
    seed: Tensor
    number: int
    gate: Tensor | None = None
    branches: tuple[tuple[int, int], ...] = ()
    values: Mapping[str, Tensor] = {}
    bounds: Mapping[str, float] = {}
    excerpt: Excerpt | None = None

    def draw(self, shape: LogitShape) -> Tensor:
        """The draws of this regulariser for logits of `shape`, as the oracle takes them."""
        stream = Stream(self.seed, self.number)
        if self.excerpt is None:
            return draw_for(self.spec, stream, shape)
        return _excerpt_for(self.spec, stream, shape, self.excerpt)

    def vector(self, field: str) -> float | Tensor:
        """A rate of the spec: a number, 0-dim, or one entry for each head."""
        found: float | Tensor = self.values[field] if field in self.values else getattr(self.spec, field)
        return found

    def rate(self, field: str) -> float | Tensor:
        """The same, as it broadcasts against logits, switched off by the gate: at rate 0 nothing happens."""
        value = self.vector(field)
        if isinstance(value, Tensor) and value.ndim == 1:
            value = value.view(-1, 1, 1)
        return value if self.gate is None else self.gate * value

    def bound(self, field: str) -> float:
        """A number that the rate never exceeds."""
        if field in self.values:
            return self.bounds.get(field, math.inf)
        bound: float = getattr(self.spec, field)
        return bound

    @property
    def is_learned(self) -> bool:
        """Whether a rate has a gradient."""
        return torch.is_grad_enabled() and any(value.requires_grad for value in self.values.values())

    @property
    def differs_by_head(self) -> bool:
        """Whether heads have rates of their own."""
        return any(value.ndim == 1 for value in self.values.values())


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
    return draw_for(spec, Stream(seed, counter.take()), shape)


def draw_for(spec: Spec, stream: Stream, shape: LogitShape) -> Tensor:
    """What one regulariser draws from its stream."""
    if isinstance(spec, HardMasking) and spec.heads == "stratified":
        return _stratified(stream, shape, min(spec.k, shape.columns), None)
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


def _stratified(stream: Stream, shape: LogitShape, ranks: int, rows: Tensor | None) -> Tensor:
    """Uniforms [B, H, N or rows, ranks] of which, over the heads, one lies in each H-th part of [0, 1).

    `(m + u) / H` with one u for all heads and m a random order of them: then the number of uniforms below p is the
    floor or the ceiling of `p * H`, and each of them is uniform by itself.
    """
    heads = shape.heads
    words = stream.words(shape.batch, heads + 1, shape.rows, ranks)
    if rows is not None:
        words = words._replace(line=words.line[:, :, rows])
    drawn = words.uniforms()
    order = drawn[:, :heads].argsort(dim=1).argsort(dim=1)
    # A sum that rounds up to 1 would escape p = 1.
    return ((order + drawn[:, heads:]) / heads).clamp_max(1.0 - 2.0**-24)


def _excerpt_for(spec: Spec, stream: Stream, shape: LogitShape, excerpt: Excerpt) -> Tensor:
    """What `draw_for` draws for the whole call, at the rows of the excerpt."""
    if isinstance(spec, BlurSmoothing | DropHead):
        whole = draw_for(spec, stream, excerpt.whole)
        by_sample = isinstance(spec, DropHead) or spec.sampling == "sample"
        return whole[: shape.batch] if by_sample else whole
    if isinstance(spec, HardMasking) and spec.heads == "stratified":
        return _stratified(stream, excerpt.whole, min(spec.k, shape.columns), excerpt.rows)[: shape.batch]
    words = stream.words(shape.batch, *excerpt.whole[1:])
    words = words._replace(line=words.line[:, :, excerpt.rows])
    return words.normals() if isinstance(spec, GaussianNoise) else words.uniforms()


def numbered(spec: Spec) -> list[tuple[int, Spec]]:
    """The regularisers of a spec with their numbers, in order."""
    return _numbered(spec, _Counter())


def _numbered(spec: Spec, counter: _Counter) -> list[tuple[int, Spec]]:
    if isinstance(spec, Consistency):
        return []
    if isinstance(spec, OneOf):
        counter.take()
    if isinstance(spec, Compose | OneOf):
        return [leaf for part in spec.parts for leaf in _numbered(part, counter)]
    return [(counter.take(), spec)]


def active_leaves(drop: Spec | Driven, seed: Tensor, dtype: torch.dtype) -> list[Active]:
    """The regularisers of a call in one flat list. All parts of a `OneOf` are in it, gated by its choice.

    `dtype` is that of the logits: a gated rate must not be less exact than a plain one.

    Gates instead of a branch: the choice stays on the device, so nothing synchronises and a compiled or captured graph
    chooses anew in each replay.
    """
    spec, values, bounds = drop if isinstance(drop, Driven) else Driven(drop, {})
    leaves = _active(spec, Active(spec, seed, 0), dtype, _Counter())
    return [
        leaf._replace(values=_values_of(leaf, values, dtype), bounds=bounds.get(leaf.number, {})) for leaf in leaves
    ]


def _values_of(leaf: Active, values: Values, dtype: torch.dtype) -> dict[str, Tensor]:
    given = {
        field: value() if isinstance(value, LearnedRate) else value
        for field, value in values.get(leaf.number, {}).items()
    }
    if leaf.seed.is_meta:
        # A gradient could not come back from there to a rate that has a value.
        given = {field: value.detach() for field, value in given.items()}
    found = {field: value.to(leaf.seed.device, dtype) for field, value in given.items()}
    for field, schedule in leaf.spec.scheduled().items():
        if field not in found:
            if not isinstance(schedule, PerHead) or not all(isinstance(value, float) for value in schedule.values):
                expected = "a number (attach evaluates schedules in training; spec.at(progress) does it by hand)"
                raise bad_argument(field, expected, str(schedule))
            found[field] = torch.tensor(schedule.values, dtype=dtype, device=leaf.seed.device)
    return found


def _active(spec: Spec, parent: Active, dtype: torch.dtype, counter: _Counter) -> list[Active]:
    """Walks the spec in the order of `_sample`, so that every regulariser has the same stream there and here."""
    if isinstance(spec, Consistency):
        return []
    if isinstance(spec, Compose):
        return [leaf for part in spec.parts for leaf in _active(part, parent, dtype, counter)]
    if isinstance(spec, OneOf):
        number = counter.take()
        choice = Stream(parent.seed, number).uniform_vector(1)[0]
        leaves: list[Active] = []
        below, last = 0.0, len(spec.parts) - 1
        for index, part in enumerate(spec.parts):
            above = below + spec.weights[index]
            # The last interval is open above, so that rounding of the sum leaves no gap.
            chosen = (choice >= below) if index == last else (choice >= below) & (choice < above)
            chosen = chosen.to(dtype)
            gate = chosen if parent.gate is None else parent.gate * chosen
            branch = parent._replace(gate=gate, branches=(*parent.branches, (number, index)))
            leaves += _active(part, branch, dtype, counter)
            below = above
        return leaves
    return [parent._replace(spec=spec, number=counter.take())]


def are_exclusive(one: Active, other: Active) -> bool:
    """Whether the two sit in different parts of the same `OneOf`, so that at most one of them acts."""
    places = dict(one.branches)
    return any(places.get(number, index) != index for number, index in other.branches)


def blur_sigma(leaf: Active, shape: LogitShape, dtype: torch.dtype) -> Tensor:
    """The sigma of a blur leaf as [B or 1, H or 1]."""
    low, high = leaf.vector("sigma_min"), leaf.vector("sigma_max")
    uniform = leaf.draw(shape).to(dtype)
    sigma: Tensor = low + (high - low) * (
        uniform.view(-1, 1) if leaf.spec.sampling == "sample" else uniform.view(1, -1)
    )
    return sigma if leaf.gate is None else sigma * leaf.gate


class BlurArguments(NamedTuple):
    """A blur as our operators take it: they draw sigma themselves, on the device, and multiply it by the gate."""

    gate: Tensor | None
    rest: tuple[int, str, float, float, int, bool]


def suits_operators(leaf: Active) -> bool:
    """Whether our operators can blur by this leaf: not where heads or samples have sigmas of their own that are
    tensors, or sigma has a gradient.
    """
    one = leaf.spec.sampling == "batch" and not leaf.differs_by_head
    return not leaf.values or (one and not leaf.is_learned)


def blur_arguments(leaf: Active) -> BlurArguments:
    """The arguments of a blur leaf.

    Under a compiler sigma_max goes into the gate: as a number it would be a constant, and a graph compiled for
    each value of a schedule.
    """
    spec: BlurSmoothing = leaf.spec
    if leaf.values:
        sigma = blur_sigma(leaf, LogitShape(1, 1, 1, 1), next(iter(leaf.values.values())).dtype)
        return BlurArguments(sigma.view(()), (leaf.number, "batch", 1.0, 1.0, spec.width, spec.edges == "renormalize"))
    gate, low, high = leaf.gate, spec.sigma_min, spec.sigma_max
    if torch.compiler.is_compiling() and high > 0:
        one = torch.ones((), dtype=torch.float32, device=leaf.seed.device) if gate is None else gate
        gate, low, high = one * high, low / high if low > 0 else 0.0, 1.0
    return BlurArguments(gate, (leaf.number, spec.sampling, low, high, spec.width, spec.edges == "renormalize"))
