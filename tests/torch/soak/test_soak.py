"""Random combinations of model, spec, mask, checkpointing, compilation and autocast against eager float64.

All have equal draws, and gradients are compared, too. A case is made from its number alone, and says what it is:

    pytest tests/torch/soak -m "" -s -k "case_137]"

The first ones run in every `make test`, all of them in `make test-all`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from compiler import needs_compiler
from soak_cases import BACKENDS, CHECKPOINTING, COUNT, Case, make_case
from soak_compare import check
from soak_masks import MASKS
from soak_models import MODELS

import attentiondrop as ad
from attentiondrop.specs import REGISTRY, BlurSmoothing, HardMasking

#: How many cases run in every `make test`.
QUICK = 8
CASES = [make_case(number) for number in range(COUNT)]


def marked(case: Case) -> object:
    marks = [pytest.mark.slow] if case.number >= QUICK or case.compiled else []
    return pytest.param(case, id=f"case_{case.number}", marks=[*marks, needs_compiler] if case.compiled else marks)


@pytest.mark.no_cover
@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_soak(case: Case) -> None:
    print(f"\n{case}", flush=True)
    report = check(case)
    print(f"  ran as backend={report.backend!r}, {report.sets} of {report.tries} sets of data without near ties")
    assert not report.failures(), f"{case}\n(error, allowed): {report.failures()}"


def spec_classes(case: Case) -> Iterator[type]:
    yield type(case.spec)
    yield from (type(leaf) for leaf in case.spec.leaves())


def test_the_cases_cover_everything() -> None:
    """A random choice that never takes one of its ways would not be noticed otherwise."""
    assert {case.model for case in CASES} == set(MODELS)
    assert {case.mask for case in CASES} >= set(MASKS)
    assert {kind for case in CASES for kind in spec_classes(case)} == set(REGISTRY.values())
    schedules = {type(rate) for case in CASES for leaf in case.spec.leaves() for rate in leaf.scheduled().values()}
    assert schedules == set(ad.schedules.REGISTRY.values()) - {ad.schedules.PerLayer}
    leaves = [leaf for case in CASES for leaf in case.spec.leaves()]
    hard = [leaf for leaf in leaves if isinstance(leaf, HardMasking)]
    assert {(leaf.fill, leaf.heads) for leaf in hard} == {
        (fill, heads) for fill in ("zero", "-inf") for heads in ("independent", "stratified")
    }
    blurs = [leaf for leaf in leaves if isinstance(leaf, BlurSmoothing)]
    assert {(leaf.axes, leaf.edges) for leaf in blurs} == {
        (axes, edges) for axes in ("keys", "both") for edges in ("zero", "renormalize")
    }
    assert {leaf.sampling for leaf in blurs} == {"batch", "sample", "head"}
    assert {(case.checkpointing, case.backend) for case in CASES} == {(a, b) for a in CHECKPOINTING for b in BACKENDS}
    assert {case.dtype for case in CASES} == {torch.float64, torch.float32, torch.float16, torch.bfloat16}
    assert sum(case.compiled for case in CASES) == 10 and sum(case.autocast for case in CASES) >= 20
    assert not any(case.compiled for case in CASES[:QUICK])
