"""Grids are checked without advice about their values: who uses one is advised then."""

from __future__ import annotations

import pytest

import attentiondrop as ad
from attentiondrop import errors
from attentiondrop.experiments.methods.grids import check_grids


def test_checking_a_grid_gives_no_advice_and_takes_none_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    check_grids({"hard": {"p": [0.1, 0.9]}}, "ablations")  # a warning would be an error in the tests
    with pytest.warns(errors.AttentionDropWarning, match="0.9 is legal"):
        ad.HardMasking(p=0.9)
