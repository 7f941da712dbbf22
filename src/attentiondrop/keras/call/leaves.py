"""The regularisers of one call with their draws. The draws come from a seed, or are passed in as for the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from keras import ops

from ...errors import ShapeError, bad_argument
from ...specs import Compose, Consistency, Draws, OneOf, Spec
from ..rates import long_names, rate_fields
from .draws import Stream, seed_words

Tensor = Any


class LogitShape(NamedTuple):
    """The shape of the logits that need draws; while a graph is traced, dimensions may be tensors."""

    batch: Any
    heads: Any
    rows: Any
    columns: Any


class Leaf(NamedTuple):
    """One regulariser of a call. `gate` is None, or a 0-dim tensor that is 0 where `OneOf` chose another one."""

    spec: Any
    draw: Tensor
    rates: dict[str, Any]
    gate: Tensor | None

    def rate(self, field: str, dtype: str = "float32") -> Any:
        """A number of the spec, times the gate: at rate 0 every regulariser is the identity."""
        value = self.rates[field]
        if not isinstance(value, float):
            value = ops.cast(value, dtype)
        return value if self.gate is None else ops.cast(self.gate, dtype) * value

    def sigma(self, dtype: str) -> Tensor:
        """The sigma of a blur as [B or 1, H or 1]."""
        low, high = self.rate("sigma_min", dtype), self.rate("sigma_max", dtype)
        sigma = (high - low) * ops.cast(self.draw, dtype) + low
        return ops.reshape(sigma, (-1, 1) if self.spec.sampling == "sample" else (1, -1))


def leaves_of(
    spec: Spec, shape: LogitShape, seed: Any = None, draws: Any = None, rates: Tensor | None = None
) -> list[Leaf]:
    """The regularisers of a call in one flat list. All parts of a `OneOf` are in it; its choice sets their gates.

    Gates are used instead of a branch: the choice is then part of the graph, and a compiled step chooses in each call.
    `rates` are the numbers of the spec in one tensor (see `Rates`); by default they come from the spec.
    """
    words = None if draws is not None else seed_words(seed)
    numbers = iter(range(2**20))
    leaves = list(_walk(spec, draws, None, _Source(shape, words, numbers, _rate_reader(spec, rates))))
    if not leaves:
        raise bad_argument("drop", "a spec that acts on attention (consistency acts on model outputs)", str(spec))
    return leaves


class _Source(NamedTuple):
    """Gives a walk over a spec the next stream of draws and the next rates, in the order of the parts."""

    shape: LogitShape
    words: tuple[Tensor, Tensor] | None
    #: Each regulariser has its own stream. The number is its place in the spec, as in `attentiondrop.torch`.
    numbers: Iterator[int]
    read_rates: Callable[[Spec], dict[str, Any]]

    def stream(self) -> Stream | None:
        """The next stream, or None if the draws were passed in."""
        number = next(self.numbers)
        return None if self.words is None else Stream(self.words, number)


def _rate_reader(spec: Spec, rates: Tensor | None) -> Callable[[Spec], dict[str, Any]]:
    position = iter(range(2**20))
    if rates is not None:
        rates = ops.convert_to_tensor(rates)
        names = long_names(spec)
        # JAX would read the last number again where there are too few.
        if tuple(rates.shape) not in ((len(names),), (None,)):
            expected = f"{len(names)} numbers ({', '.join(names)})"
            raise ShapeError(f"rates: expected {expected}, received a tensor of shape {list(rates.shape)}")

    def read(leaf: Spec) -> dict[str, Any]:
        if rates is None:
            return {field: getattr(leaf, field) for field in rate_fields(leaf)}
        return {field: rates[next(position)] for field in rate_fields(leaf)}

    return read


def _walk(spec: Spec, given: Any, gate: Tensor | None, source: _Source) -> Iterator[Leaf]:
    if isinstance(spec, Consistency):
        source.read_rates(spec)
    elif isinstance(spec, Compose):
        for part, draw in _parts(spec, given):
            yield from _walk(part, draw, gate, source)
    elif isinstance(spec, OneOf):
        stream = source.stream()
        choice, inner = (stream.uniform_vector(1)[0], None) if stream is not None else _pair(spec, given)
        choice = ops.convert_to_tensor(choice)
        below = 0.0
        for index, (part, draw) in enumerate(_parts(spec, inner)):
            above = below + spec.weights[index]
            chosen = choice >= below
            # The last interval has no upper end, so that rounding of the sum leaves no gap.
            if index < len(spec.parts) - 1:
                chosen = ops.logical_and(chosen, choice < above)
            switch = ops.cast(chosen, "float32")
            yield from _walk(part, draw, switch if gate is None else gate * switch, source)
            below = above
    else:
        stream = source.stream()
        expected = spec.draws.shape(*source.shape)
        draw = _drawn(spec.draws, stream, expected) if stream is not None else _checked(spec, given, expected)
        yield Leaf(spec, draw, source.read_rates(spec), gate)


def _parts(spec: Compose | OneOf, given: Any) -> list[tuple[Spec, Any]]:
    if given is None:
        return [(part, None) for part in spec.parts]
    if not isinstance(given, list | tuple) or len(given) != len(spec.parts):
        raise bad_argument("draws", f"a list of {len(spec.parts)} for {spec}", type(given).__name__)
    return list(zip(spec.parts, given, strict=True))


def _pair(spec: OneOf, given: Any) -> tuple[Any, Any]:
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise bad_argument("draws", f"a pair (uniform, list of draws) for {spec}", type(given).__name__)
    return given[0], given[1]


def _drawn(draws: Draws, stream: Stream, shape: tuple[Any, ...]) -> Tensor:
    normal = draws.distribution == "normal"
    if "rows" in draws.over:
        return stream.normals(*shape) if normal else stream.uniforms(*shape)
    vector = stream.normal_vector if normal else stream.uniform_vector
    if shape == ():
        return vector(1)[0]
    length = shape[0]
    for size in shape[1:]:
        length = length * size
    return ops.reshape(vector(length), shape)


def _checked(spec: Spec, given: Any, shape: tuple[Any, ...]) -> Tensor:
    draw = ops.convert_to_tensor(given)
    fits = len(draw.shape) == len(shape) and all(
        not isinstance(want, int) or have is None or have == want for have, want in zip(draw.shape, shape, strict=True)
    )
    if not fits:
        raise ShapeError(f"draws: expected shape {list(shape)} for {spec}, received {list(draw.shape)}")
    return draw
