"""Every comparator in a captured step: it ends where the uncaptured one does, or says why it cannot be captured."""

from __future__ import annotations

import pytest

from attentiondrop.experiments.methods import COMPARATORS, Comparator

from .test_captured_step import check_equal, exact_learning_rates, training

__all__ = ["exact_learning_rates"]

#: Settings in which much happens within a few steps.
SETTINGS = {
    "layerdrop": "layerdrop(p=0.5)",
    "branchdrop": "branchdrop(p=0.5)",
    "manifoldmixup": "manifoldmixup(alpha=0.5)",
    "emateacher": "emateacher(weight=5.0,decay=0.5)+dropout(p=0.3)",
    "headpruning": "headpruning(share=0.5,at=0.5)",
    "attentionentropy": "attentionentropy(weight=1.0)",
    "adaptivespan": "adaptivespan(ramp=2.0,penalty=0.1)",
    "topk": "topk(k=3)",
}

#: The others only set numbers that every step has anyway.
WITHIN_STEPS = [
    name
    for name, one in COMPARATORS.items()
    if any(getattr(one, hook) is not getattr(Comparator, hook) for hook in ("build", "change", "act"))
]


@pytest.mark.parametrize("name", [name for name in WITHIN_STEPS if not COMPARATORS[name].not_captured])
def test_captured_steps_end_where_uncaptured_ones_do(tmp_path, name: str) -> None:
    method = SETTINGS.get(name, name)
    plain, captured = (training(tmp_path / str(on), method, captured=on) for on in (False, True))
    lines = [[epoch.train_loss for epoch in found.run(lambda epoch: None)] for found in (plain, captured)]
    assert captured.captured == "captured" and captured.tape.recorded == 1
    assert lines[0] == lines[1]
    check_equal(plain, captured)


@pytest.mark.parametrize("name", [name for name, one in COMPARATORS.items() if one.not_captured])
def test_one_that_cannot_be_captured_says_so(tmp_path, name: str) -> None:
    lines: list[str] = []
    found = training(tmp_path, name, captured=True, say=lines.append)
    assert found.captured == f"{name} {COMPARATORS[name].not_captured}"
