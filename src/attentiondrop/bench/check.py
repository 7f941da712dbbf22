"""Check whether a row computes the right result. A row that does not is not timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .shapes import Shape
from .tensors import Attend, Step, Tensors, forward_backward

#: Every comparison draws from this seed.
SEED = 1234
#: How many calls of a random row are averaged.
CALLS = 32
#: An upper estimate of the bytes that a float64 reference needs for every logit.
_BYTES = 160


class Verdict(NamedTuple):
    """What was checked, the error that was found, and the limit that the error must stay below."""

    text: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the error is below the limit; False for NaN."""
        return self.error < self.limit


class Trial(NamedTuple):
    """A row at a shape, and `part`: the part of the shape that is small enough for a float64 reference."""

    attend: Attend
    shape: Shape
    tensors: Tensors
    part: Shape
    build: Callable[[Shape, Tensors], Attend]


def affordable(shape: Shape, device: str) -> Shape:
    """The part of a shape for the float64 reference, which builds all logits."""
    if device == "cuda":
        fits = torch.cuda.get_device_properties().total_memory // (2 * _BYTES)
        return shape.part(min(300_000_000, fits), min(600_000_000, fits))
    return shape.part(3_000_000, 20_000_000)


def limit_for(dtype: torch.dtype) -> float:
    """The largest relative error that rounding can explain."""
    return 2e-2 if dtype.itemsize < 4 else 1e-4


def plain_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention by its definition, in the dtype of the inputs; heads may be grouped."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        logits = logits.masked_fill(hidden, -math.inf)
    output: Tensor = logits.softmax(dim=-1) @ v
    return output


def compare(
    trial: Trial, reference: Callable[[Shape, Tensors], Attend], heads_alone: bool = True, against: str = "attention"
) -> Verdict:
    """Compare output and gradients with `reference` in float64, with the same seed.

    The row runs at its full shape, and the first part of its result is compared, since samples do not depend on each
    other. If the part is shorter, or has fewer heads and heads depend on each other, the row runs on the part only.
    """
    part, shape = trial.part, trial.shape
    whole = part.length == shape.length and (heads_alone or part.heads == shape.heads)
    if whole:
        got = forward_backward(trial.attend, trial.tensors, SEED)
    else:
        small = trial.tensors.cut(part)
        got = forward_backward(trial.build(part, small), small, SEED)
    exact = trial.tensors.cut(part, torch.float64)
    want = forward_backward(reference(part, exact), exact, SEED)
    where = "" if part == shape else f", at {part}" if not whole else f", first {part.batch}x{part.heads} of it"
    text = f"output and gradients against float64 {against}{where}"
    finite = all(bool(x.isfinite().all()) for x in got)
    error = max(relative_errors(got, want, part)) if finite else math.nan
    return Verdict(text, error, limit_for(trial.tensors.q.dtype))


def plain(part: Shape, tensors: Tensors) -> Attend:
    """The reference for rows that are plain attention, exactly or on average."""
    return lambda q, k, v: plain_attention(q, k, v, part.causal)


def average(trial: Trial, p: float) -> Verdict:
    """Check dropout with unknown draws: the mean of many calls must be near plain attention, and calls must differ.

    The error of the mean of n calls is about sqrt(p / (1 - p) / n); twice that is allowed.
    """
    got = forward_backward(trial.attend, trial.tensors, SEED)
    small = trial.tensors.cut(trial.part)
    attend = trial.build(trial.part, small)
    exact = trial.tensors.cut(trial.part, torch.float64)
    with torch.no_grad():
        want = plain_attention(*exact.inputs, trial.part.causal)
        first = attend(*small.inputs).double()
        total, differ = first.clone(), False
        for _ in range(CALLS - 1):
            output = attend(*small.inputs).double()
            differ = differ or not torch.equal(output, first)
            total += output
    error = relative_error(total / CALLS, want)
    usable = differ and all(bool(x.isfinite().all()) for x in got)
    where = "" if trial.part == trial.shape else f", at {trial.part}"
    text = f"mean of {CALLS} outputs against float64 attention, outputs differ, gradients finite{where}"
    return Verdict(text, error if usable else math.nan, 2 * math.sqrt(p / (1 - p) / CALLS))


def quiet(trial: Trial, silent: Attend, how: str) -> Verdict:
    """Check a listing whose draws are unknown: plain attention with its randomness off, finite with it on."""
    got = forward_backward(trial.attend, trial.tensors, SEED)
    verdict = compare(trial._replace(attend=silent, build=lambda shape, tensors: silent), plain)
    usable = all(bool(x.isfinite().all()) for x in got)
    text = f"at {how}: {verdict.text}; finite otherwise"
    return Verdict(text, verdict.error if usable else math.nan, verdict.limit)


def relative_errors(got: Step, want: Step, part: Shape) -> Sequence[float]:
    """The relative errors of output, dq, dk and dv, each cut to the part."""
    heads = (part.heads, part.heads, part.key_heads, part.key_heads)
    cut = [x[: part.batch, :count, : part.length] for x, count in zip(got, heads, strict=True)]
    return [relative_error(x, y) for x, y in zip(cut, want, strict=True)]


def relative_error(got: Tensor, want: Tensor) -> float:
    """The relative error in the Frobenius norm."""
    return float((got.double() - want).norm() / want.norm().clamp_min(torch.finfo(torch.float64).tiny))
