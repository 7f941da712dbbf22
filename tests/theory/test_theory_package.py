"""The package itself: what it loads, and names."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest
import torch

import attentiondrop.theory
from attentiondrop.theory.overlap import repeated


def test_bounds_need_no_framework() -> None:
    code = (
        "import sys, attentiondrop.theory as t; t.pac_bayes_bound(0.1, 1.0, 100); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'scipy')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_is_there_and_a_function_stays_one() -> None:
    for name in attentiondrop.theory.__all__:
        assert callable(getattr(attentiondrop.theory, name)), name
    # Importing the modules must not put one of them in a function's place.
    for module in ("risk", "variance", "entropy", "posterior_risk"):
        importlib.import_module(f"attentiondrop.theory.{module}")
    assert callable(attentiondrop.theory.gradient_variance)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = attentiondrop.theory.nothing


def test_repeated_examples() -> None:
    held_out, others = torch.randn(10, 1, 4, 4), torch.randn(20, 1, 4, 4)
    others[7], others[19] = held_out[2], held_out[9]
    found = repeated(held_out.split(3), others.split(7))
    assert np.flatnonzero(found).tolist() == [2, 9]
    assert not repeated([held_out], []).any()
