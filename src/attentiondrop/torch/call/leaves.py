"""The regularisers of a spec in one flat list, each with its draws in the form that `attentiondrop.reference` takes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import bad_argument
from ...schedules import PerHead, Schedule
from ...specs import BlurSmoothing, Compose, Consistency, Draws, OneOf, Spec
from ..draws import Stream, Words

#: The stream of SDPA's own `dropout_p`. Regularisers are numbered from 0, so none has this number.
DROPOUT_STREAM = 2**20

#: No values. All calls share it.
_NOTHING: Mapping[str, Any] = {}


class LogitShape(NamedTuple):
    """The shape of the logits that the draws are for."""

    batch: int
    heads: int
    rows: int
    columns: int


#: Number of a regulariser -> field -> its value: a tensor, 0-dim or with one entry for each head, or a function without
#: arguments that returns one (a learned rate is such a function).
Values = Mapping[int, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Numbers that rates never exceed, by the number of the regulariser and the field.

    An object of its own, and no dict: a compiler looks into a dict that it passes on, and compiles again for other
    numbers, although most paths do not depend on them.
    """

    known: Mapping[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def of(self, number: int, field: str) -> float:
        """The bound of one rate, infinite if none is known."""
        bound: float = self.known.get(number, _NOTHING).get(field, math.inf)
        return bound


#: Of rates that are numbers.
UNBOUNDED = Bounds()


class Driven(NamedTuple):
    """A spec with rates that are tensors. A compiled or captured graph reads their current values in each run.

    The path of a call is chosen by the `bounds` of these rates, because reading a tensor would synchronise. `states`
    are what regularisers keep from call to call, by their numbers.
    """

    spec: Spec
    values: Values
    bounds: Bounds = UNBOUNDED
    states: Mapping[int, Any] = {}


class Excerpt(NamedTuple):
    """Says that logits are some rows of the first samples of a larger call. They get the draws of that call."""

    whole: LogitShape
    rows: Tensor


class Active(NamedTuple):
    """One regulariser of a call. Its draws are made when `draw` is called, not before.

    `gate` is None or a 0-dim tensor: 1 if each `OneOf` around the regulariser chose it, else 0. `branches` are the
    parts of these `OneOf`s. `values` are the fields that are tensors, in the dtype of the logits. They belong to this
    call: nothing changes them later. `bounds` are numbers that rates never exceed. `state` is what the regulariser
    keeps from call to call, if anything. The batch has `groups` equal parts, one after the other: what is drawn once
    for a call is drawn for each of them.
    """

    spec: Any
    seed: Tensor
    number: int
    gate: Tensor | None = None
    branches: tuple[Branch, ...] = ()
    values: Mapping[str, Tensor] = {}
    bounds: Bounds = UNBOUNDED
    excerpt: Excerpt | None = None
    state: Any = None
    groups: int = 1

    def draw(self, shape: LogitShape) -> Tensor:
        """The draws of this regulariser for logits of `shape`, as the oracle takes them."""
        draws, stream = self.spec.draws, Stream(self.seed, self.number)
        if self.draws_for_groups():
            return self.of_samples(stream.uniform_vector(self.groups), shape)
        if self.excerpt is None:
            return _drawn(draws, stream, shape, None)
        # The draws of the first samples do not depend on how many samples follow.
        return _drawn(draws, stream, self.excerpt.whole._replace(batch=shape.batch), self.excerpt)

    def draws_for_groups(self) -> bool:
        """Whether each group of the batch gets one draw, which all of its samples share."""
        return self.groups > 1 and not self.spec.draws.over

    def of_samples(self, drawn: Tensor, shape: LogitShape) -> Tensor:
        """The draws of the groups, repeated for each sample of logits of `shape`: [B]."""
        whole = shape.batch if self.excerpt is None else self.excerpt.whole.batch
        return drawn.repeat_interleave(whole // self.groups)[: shape.batch]

    def below(self, shape: LogitShape, rate: float | Tensor) -> Tensor:
        """`draw(shape) < rate`, for a regulariser that draws uniforms."""
        draws = self.spec.draws
        if "rows" not in draws.over or draws.distribution == "stratified":
            return self.draw(shape) < rate
        stream = Stream(self.seed, self.number)
        if self.excerpt is None:
            return stream.below(shape, rate)
        whole = self.excerpt.whole._replace(batch=shape.batch)
        return _some_rows(stream.words(*whole), self.excerpt).below(rate)

    def vector(self, field: str) -> float | Tensor:
        """A rate of the spec: a number, a 0-dim tensor, or a tensor with one entry for each head."""
        found: float | Tensor = self.values[field] if field in self.values else getattr(self.spec, field)
        return found

    def gated(self, field: str) -> float | Tensor:
        """The same, times the gate: at rate 0 a regulariser does nothing."""
        value = self.vector(field)
        return value if self.gate is None else self.gate * value

    def rate(self, field: str) -> float | Tensor:
        """The same, in a shape that broadcasts against logits."""
        value = self.gated(field)
        return value.view(-1, 1, 1) if isinstance(value, Tensor) and value.ndim == 1 else value

    def bound(self, field: str) -> float:
        """A number that the rate never exceeds."""
        if field in self.values:
            return self.bounds.of(self.number, field)
        bound: float = getattr(self.spec, field)
        return bound

    def is_learned(self) -> bool:
        """Whether a rate has a gradient."""
        return torch.is_grad_enabled() and any(value.requires_grad for value in self.values.values())

    def differs_by_head(self) -> bool:
        """Whether heads have rates of their own."""
        return any(value.ndim == 1 for value in self.values.values())


def draw_for(spec: Spec, stream: Stream, shape: LogitShape) -> Tensor:
    """What one regulariser draws from its stream for logits of `shape`."""
    return _drawn(spec.draws, stream, shape, None)


def _drawn(draws: Draws, stream: Stream, shape: LogitShape, excerpt: Excerpt | None) -> Tensor:
    """The draws for logits of `shape`, or for some of its rows only. Draws that have no rows are the same for all."""
    if draws.distribution == "stratified":
        return _stratified(stream, shape, min(draws.ranks, shape.columns), excerpt)
    if "rows" not in draws.over:
        wanted = draws.shape(*shape)
        vector = stream.normal_vector if draws.distribution == "normal" else stream.uniform_vector
        return vector(math.prod(wanted)).view(wanted)
    words = _some_rows(stream.words(*shape), excerpt)
    return words.normals() if draws.distribution == "normal" else words.uniforms()


def _some_rows(words: Words, excerpt: Excerpt | None) -> Words:
    return words if excerpt is None else words._replace(line=words.line[:, :, excerpt.rows])


def _stratified(stream: Stream, shape: LogitShape, ranks: int, excerpt: Excerpt | None) -> Tensor:
    """Uniforms [B, H, N or rows, ranks]. For each row and rank, each H-th part of [0, 1) holds the uniform of one head.

    `(m + u) / H` with one u for all heads and m a random order of them: then the number of uniforms below p is the
    floor or the ceiling of `p * H`, and each of them is uniform by itself.
    """
    heads = shape.heads
    drawn = _some_rows(stream.words(shape.batch, heads + 1, shape.rows, ranks), excerpt).uniforms()
    order = drawn[:, :heads].argsort(dim=1).argsort(dim=1)
    # A uniform that was rounded up to 1 would not be below p = 1.
    return ((order + drawn[:, heads:]) / heads).clamp_max(1.0 - 2.0**-24)


class Branch(NamedTuple):
    """A part of a `OneOf` on the way to a regulariser."""

    #: The stream from which the `OneOf` draws its choice.
    number: int
    part: int
    #: The part is chosen where the uniform lies here; the last part of all has no upper end.
    low: float
    high: float | None


class Place(NamedTuple):
    """One regulariser of a spec: the number of its stream, and the branches that lead to it."""

    number: int
    spec: Spec
    branches: tuple[Branch, ...] = ()


def places(spec: Spec) -> list[Place]:
    """The regularisers of a spec in order. Each has a stream of its own, and so has the choice of each `OneOf`."""
    return list(_walk(spec, (), itertools.count()))


class _Read(NamedTuple):
    """What `active_leaves` needs of a spec, and what does not change from call to call."""

    places: tuple[Place, ...]
    #: For each place, the fields that are schedules.
    scheduled: tuple[dict[str, Schedule], ...]
    #: The streams from which a `OneOf` draws its choice.
    choices: tuple[int, ...]


def _read(spec: Spec) -> _Read:
    found = tuple(places(spec))
    numbers = {branch.number for place in found for branch in place.branches}
    return _Read(found, tuple(place.spec.scheduled() for place in found), tuple(sorted(numbers)))


_read_once = functools.lru_cache(maxsize=1024)(_read)


def _walk(spec: Spec, branches: tuple[Branch, ...], numbers: Iterator[int]) -> Iterator[Place]:
    if isinstance(spec, Consistency):
        return
    if isinstance(spec, Compose):
        for part in spec.parts:
            yield from _walk(part, branches, numbers)
    elif isinstance(spec, OneOf):
        number, last = next(numbers), len(spec.parts) - 1
        low = 0.0
        for index, part in enumerate(spec.parts):
            high = low + spec.weights[index]
            # The last interval is open above, so that rounding of the sum leaves no gap.
            branch = Branch(number, index, low, None if index == last else high)
            yield from _walk(part, (*branches, branch), numbers)
            low = high
    else:
        yield Place(next(numbers), spec, branches)


def active_leaves(drop: Spec | Driven, seed: Tensor, dtype: torch.dtype, groups: int = 1) -> list[Active]:
    """The regularisers of a call in one flat list. All parts of a `OneOf` are in it, gated by its choice.

    `dtype` is that of the logits: a gated rate must not be less exact than a plain one. `groups` are the parts of the
    batch that share no draw (`needs_calls_for_groups` says where one call cannot serve them).

    Gates instead of a branch: the choice stays on the device, so nothing synchronises and a compiled or captured graph
    chooses anew in each replay.
    """
    # (Not a `Driven` with its defaults: the compiler of torch 2.11 does not find out where they come from.)
    spec, values, bounds, states = drop if isinstance(drop, Driven) else (drop, {}, UNBOUNDED, {})
    # A compiler ignores such a cache, and warns of it.
    read = _read(spec) if torch.compiler.is_compiling() else _read_once(spec)
    # One draw for each `OneOf`, which its parts share: making the stream is the expensive part.
    choices = {number: Stream(seed, number).uniform_vector(1)[0] for number in read.choices}
    return [
        Active(
            place.spec,
            seed,
            place.number,
            _gate(place.branches, choices, dtype) if choices else None,
            place.branches,
            _values_of(place, scheduled, seed.device, dtype, values) if scheduled or values else _NOTHING,
            bounds,
            state=states.get(place.number),
            groups=groups,
        )
        for place, scheduled in zip(read.places, read.scheduled, strict=True)
    ]


def _gate(branches: tuple[Branch, ...], choices: Mapping[int, Tensor], dtype: torch.dtype) -> Tensor | None:
    """1 where every `OneOf` on the way chose this branch, else 0; None without any."""
    gate: Tensor | None = None
    for branch in branches:
        choice = choices[branch.number]
        chosen = choice >= branch.low
        chosen = (chosen if branch.high is None else chosen & (choice < branch.high)).to(dtype)
        gate = chosen if gate is None else gate * chosen
    return gate


def _values_of(
    place: Place, scheduled: dict[str, Schedule], device: torch.device, dtype: torch.dtype, values: Values
) -> dict[str, Tensor]:
    given = {
        field: value if isinstance(value, Tensor) else value() for field, value in values.get(place.number, {}).items()
    }
    if device.type == "meta":
        # Autograd cannot send a gradient from a meta tensor back to a rate on a real device.
        given = {field: value.detach() for field, value in given.items()}
    # A call keeps the rates that it began with, since its backward may read them: an adaptive rate moves in place right
    # after the call. In a captured graph the copy is a part of the graph, so that every replay reads the present rate.
    found = {field: value.to(device, dtype, copy=True) for field, value in given.items()}
    for field, schedule in scheduled.items():
        if field not in found:
            if not isinstance(schedule, PerHead) or not all(isinstance(value, float) for value in schedule.values):
                expected = "a number (attach evaluates schedules in training; spec.at(progress) does it by hand)"
                raise bad_argument(field, expected, str(schedule))
            found[field] = torch.tensor(schedule.values, dtype=dtype, device=device)
    return found


def needs_calls_for_groups(spec: Spec) -> bool:
    """Whether groups of a batch that share no draw need a call for each: one call draws more than a sigma for all.

    The choice of a `OneOf` decides what is computed, and the sigmas of heads are the same for all samples. Kernels that
    draw a sigma for each group begin at a number: they would not serve one call of groups whose rates are tensors.
    """
    return any(
        place.branches or place.spec.draws.over == ("heads",) or _begins_at_tensors(place.spec)
        for place in places(spec)
    )


def _begins_at_tensors(spec: Spec) -> bool:
    """Whether it is a blur with schedules that draws one sigma for all, and its sigmas do not begin at 0."""
    if not isinstance(spec, BlurSmoothing) or spec.sampling != "batch":
        return False
    return bool(spec.scheduled()) and spec.sigma_min != 0.0


def are_exclusive(one: tuple[Branch, ...], other: tuple[Branch, ...]) -> bool:
    """Whether these branches lead to different parts of the same `OneOf`, so that at most one of them acts."""
    taken = {branch.number: branch.part for branch in one}
    return any(taken.get(branch.number, branch.part) != branch.part for branch in other)
