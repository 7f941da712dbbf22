"""Specs that hold other specs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import bad_argument
from ..validation import number
from .base import Spec, text_of
from .consistency import Consistency, first_consistency


@dataclass(frozen=True)
class Compose(Spec):
    """Several specs in order on the same attention; nested `Compose` are flattened.

    The specs are the `parts`.

    >>> import attentiondrop as ad
    >>> both = Compose([ad.BlurSmoothing(sigma_max=0.5), Consistency(weight=0.2)])
    >>> print(both)
    blur(sigma_max=0.5)+consistency(weight=0.2)
    >>> both.consistency
    Consistency(weight=0.2, views=2, direction='forward', task='first')
    """

    parts: tuple[Spec, ...]

    name = "compose"
    level = "container"

    def __init__(self, parts: Sequence[Spec]) -> None:
        flat: list[Spec] = []
        for part in _specs("parts", parts):
            flat.extend(part.parts if isinstance(part, Compose) else [part])
        if sum(part.consistency is not None for part in flat) > 1:
            raise bad_argument("parts", "at most one consistency(...)", " + ".join(map(str, flat)))
        self._set("parts", tuple(flat))

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return f"compose({self.parts[0]})"
        return "+".join(map(str, self.parts))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the parts as a list of such."""
        return {"name": self.name, "parts": [part.to_dict() for part in self.parts]}

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Spec:
        """The same with the schedules of all parts evaluated."""
        return Compose([part.at(progress, layer, layers) for part in self.parts])

    def leaves(self) -> Iterator[Spec]:
        """The regularisers inside all parts, in order."""
        for part in self.parts:
            yield from part.leaves()

    @property
    def consistency(self) -> Consistency | None:
        """The `Consistency` among the parts; None if there is none."""
        return first_consistency(self.parts)


@dataclass(frozen=True)
class OneOf(Spec):
    """One of several specs, chosen at random in every call, with the given probabilities (equal ones by default).

    The specs are the `parts`. The probabilities are proportional to `weights`.

    >>> import attentiondrop as ad
    >>> print(OneOf([ad.HardMasking(), ad.BlurSmoothing()], weights=[1, 3]))
    oneof(hard(p=0.1,k=5),blur(sigma_max=0.5),weights=[0.25,0.75])
    """

    parts: tuple[Spec, ...]
    weights: tuple[float, ...]

    name = "oneof"
    level = "container"

    def __init__(self, parts: Sequence[Spec], weights: Sequence[float] | None = None) -> None:
        choices = _specs("parts", parts)
        for choice in choices:
            if choice.consistency is not None:
                raise bad_argument("parts", "no consistency(...) inside oneof(...)", str(choice))
        if weights is None:
            weights = [1.0] * len(choices)
        given: Any = weights
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != len(choices):
            raise bad_argument("weights", f"{len(choices)} numbers, one for each spec", given)
        values = [number("weights", weight, minimum=0.0) for weight in given]
        if not sum(values) > 0:
            raise bad_argument("weights", "at least one positive number", weights)
        self._set("parts", choices)
        # Weights that already add up to 1 stay as they are, or `parse(str(spec))` would differ from `spec`.
        total = math.fsum(values)
        normal = values if math.isclose(total, 1.0, rel_tol=1e-12) else [value / total for value in values]
        self._set("weights", tuple(normal))

    def __str__(self) -> str:
        parts = ",".join(map(str, self.parts))
        equal = self == OneOf(self.parts)
        return f"oneof({parts})" if equal else f"oneof({parts},weights={text_of(self.weights)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the parts as a list of such."""
        return {
            "name": self.name,
            "parts": [part.to_dict() for part in self.parts],
            "weights": list(self.weights),
        }

    def at(self, progress: float, layer: int = 0, layers: int = 1) -> Spec:
        """The same with the schedules of all parts evaluated."""
        return OneOf([part.at(progress, layer, layers) for part in self.parts], self.weights)

    def leaves(self) -> Iterator[Spec]:
        """The regularisers inside all parts, in order."""
        for part in self.parts:
            yield from part.leaves()


def _specs(name: str, parts: Any) -> tuple[Spec, ...]:
    if isinstance(parts, (str, Spec)) or not isinstance(parts, Sequence) or len(parts) == 0:
        raise bad_argument(name, "a non-empty list of specs", parts)
    for part in parts:
        if not isinstance(part, Spec):
            raise bad_argument(name, "a list of specs", part)
    return tuple(parts)
