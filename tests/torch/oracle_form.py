"""The draws that torch makes for a spec, in the nested form that `attentiondrop.reference` takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from attentiondrop.specs import Compose, Consistency, OneOf, Spec
from attentiondrop.torch.call.leaves import LogitShape, draw_for
from attentiondrop.torch.draws import Stream


def sample(spec: Spec, seed: Tensor, shape: LogitShape) -> Any:
    """The draws of one call. Written apart from the library's own walk over a spec, so that one checks the other."""
    return _sample(spec, seed, shape, itertools.count())


def _sample(spec: Spec, seed: Tensor, shape: LogitShape, numbers: Iterator[int]) -> Any:
    if isinstance(spec, Consistency):
        return None
    if isinstance(spec, Compose):
        return [_sample(part, seed, shape, numbers) for part in spec.parts]
    if isinstance(spec, OneOf):
        choice = Stream(seed, next(numbers)).uniform_vector(1)[0]
        return choice, [_sample(part, seed, shape, numbers) for part in spec.parts]
    return draw_for(spec, Stream(seed, next(numbers)), shape)
