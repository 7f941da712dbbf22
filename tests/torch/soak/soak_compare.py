"""One case of the soak test: run in float64 and eager, in its own precision and eager, and as the case says.

What the case gives may be wrong by twice as much as the eager path in the same precision, or as much as
`test_parity` allows a single call: 16 eps in a wide dtype, 2 eps in one of 16 bits. Nothing here is wider than float64: what
eager is wrong by there is told by its error in float32, which is larger as eps is.

Errors are relative norms of whole tensors, the largest over a few sets of data: a single one is a matter of luck, for both
sides. For the same reason eager's largest error of any gradient of the model counts for all of them. A gradient may vanish
because its terms cancel; so its error is also measured by a mean gradient of the model.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from soak_cases import Case
from soak_models import MODELS, build, prepare
from soak_ties import near_ties, watched
from torch import Tensor, nn

from attentiondrop.errors import BackendError

#: How many sets of random data a case has.
SETS = 3
#: How many are tried until there is one without near ties, and until one is enough.
MOST_TRIES, ENOUGH_TRIES = 400, 12
Found = dict[str, Tensor]


class Way(NamedTuple):
    """How a case is run."""

    dtype: torch.dtype
    autocast: bool = False
    backend: str = "eager"
    checkpointing: str = "none"
    compiled: bool = False


class Report(NamedTuple):
    """What a case shows: for each tensor its error and the allowed one, and what happened on the way."""

    errors: dict[str, tuple[float, float]]
    backend: str
    sets: int
    tries: int

    def failures(self) -> dict[str, tuple[float, float]]:
        # Not `error > allowed`: a NaN must fail.
        return {name: pair for name, pair in self.errors.items() if not pair[0] <= pair[1]}


def floor_of(dtype: torch.dtype) -> float:
    """Half of what is allowed in any case."""
    eps = torch.finfo(dtype).eps
    return eps if dtype.itemsize == 2 else 8 * eps


def check(case: Case) -> Report:
    """Run the case in all three ways."""
    narrow = torch.float32 if case.dtype == torch.float64 else case.dtype
    # Weights and inputs that are the same in all precisions.
    model = build(case).to(narrow)
    share = torch.finfo(case.dtype).eps / torch.finfo(narrow).eps
    way = Way(case.dtype, case.autocast, case.backend, case.checkpointing, case.compiled)
    sets = tries = 0
    errors: dict[str, float] = {}
    allowed: dict[str, float] = {}
    while sets < SETS and tries < (ENOUGH_TRIES if sets else MOST_TRIES):
        tries += 1
        # New data, and new draws: with some draws, roundings decide whatever the data are.
        seed = 1000 * case.number + tries
        generator = torch.Generator().manual_seed(seed)
        inputs = {name: _rounded(x, narrow) for name, x in MODELS[case.model].inputs(case, generator).items()}
        with watched() as selections:
            exact = run(case, model, inputs, Way(torch.float64), seed)
        with watched() as low_selections:
            known = run(case, model, inputs, Way(narrow, case.autocast), seed)
        if near_ties(selections, low_selections, floor_of(torch.bfloat16 if case.autocast else narrow)):
            continue
        sets += 1
        floor = floor_of(case.low_dtype)
        for name, error in relative_errors(exact, known).items():
            group = _group(name)
            allowed[group] = max(allowed.get(group, 0.0), 2 * max(share * error, floor))
        if not case.compiled or sets == 1:  # compiling takes long
            way, found = _run_or_refuse(case, model, inputs, way, seed)
            for name, error in relative_errors(exact, found).items():
                errors[name] = max(errors.get(name, 0.0), error) if math.isfinite(error) else math.inf
    assert sets > 0, f"{case}: near ties in all of {tries} sets of data"
    return Report({name: (errors[name], allowed[_group(name)]) for name in errors}, way.backend, sets, tries)


def _group(name: str) -> str:
    return "output" if name == "output" else "gradients"


def _run_or_refuse(case: Case, model: nn.Module, inputs: dict[str, Any], way: Way, seed: int) -> tuple[Way, Found]:
    """The results; where there is no fused path, which an explicit request says, those of "auto"."""
    try:
        return way, run(case, model, inputs, way, seed)
    except BackendError as refusal:
        if way.backend != "fused" or "cannot run here" not in str(refusal):
            raise
        way = way._replace(backend="auto")
        return way, run(case, model, inputs, way, seed)


def run(case: Case, model: nn.Module, inputs: dict[str, Any], way: Way, seed: int) -> Found:
    """The output and all gradients, of inputs, parameters and learned rates, with the draws of a seed."""
    model = copy.deepcopy(model).to(way.dtype)
    rates = prepare(model, case, way.backend, way.checkpointing)
    given = {name: _rounded(x, way.dtype) for name, x in inputs.items()}
    leaves = {name: x.requires_grad_() for name, x in given.items() if _has_gradient(case, name, x)}
    called: Any = model
    if way.compiled:
        torch._dynamo.reset()
        called = torch.compile(model)
    torch.manual_seed(seed)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way.autocast):
        output = called(**given)
    output = output if isinstance(output, Tensor) else output.logits
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (output.double() * cotangent).sum().backward()
    found = {"output": output.detach().double()}
    found |= {f"d {name}": x.grad for name, x in leaves.items()}
    found |= {f"d {name}": x.grad for name, x in model.named_parameters()}
    # A fused path leaves out a blur of width 1, which changes nothing: no gradient is one of zero then.
    found |= {f"d rate {place}": torch.zeros_like(x) if x.grad is None else x.grad for place, x in enumerate(rates)}
    return {name: x.detach().double() for name, x in found.items() if x is not None}


def _rounded(x: Any, dtype: torch.dtype) -> Any:
    """A copy of what is a tensor of floats, in this dtype."""
    return x.to(dtype, copy=True) if isinstance(x, Tensor) and x.is_floating_point() else x


def _has_gradient(case: Case, name: str, x: Any) -> bool:
    if not isinstance(x, Tensor) or not x.is_floating_point() or "mask" in name:
        return False
    return name != "bias" or case.number % 2 == 0  # the fused path has none for a bias


def relative_errors(exact: Found, found: Found) -> dict[str, float]:
    """Of each tensor, as a norm."""
    assert exact.keys() == found.keys(), exact.keys() ^ found.keys()
    gradients = [x for name, x in exact.items() if name != "output"]
    mean = math.sqrt(sum(float(x.square().sum()) for x in gradients) / sum(x.numel() for x in gradients))
    errors = {}
    for name, want in exact.items():
        size = float(want.norm())
        scale = size if name == "output" else max(size, mean * math.sqrt(want.numel()))
        # Where all is zero, a difference is counted as it is.
        errors[name] = float((found[name] - want).norm()) / (scale or 1.0)
    return errors
