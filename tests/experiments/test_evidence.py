"""The pages of docs/evidence say what the committed result files say, and the recipes of the protocol can be read."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from attentiondrop.experiments.config.recipe_files import read_recipe, shipped
from attentiondrop.experiments.methods.grids import candidates
from attentiondrop.experiments.methods.groups import expanded

WRITE = Path(__file__).parents[2] / "docs" / "evidence" / "write.py"

pytestmark = pytest.mark.filterwarnings("ignore:p=.* is legal")


def test_docs_and_result_files_agree() -> None:
    found = subprocess.run([sys.executable, str(WRITE), "--check"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", [name for name in shipped() if name.startswith("evidence/")])
def test_every_method_of_a_study_has_as_many_trials(name: str) -> None:
    recipe = read_recipe(name)
    tuning = recipe.tuning
    with warnings.catch_warnings(action="ignore"):
        counts = {
            len(candidates(text, tuning.trials, tuning.seed, tuning.grids, tuning.points))
            for text in expanded(recipe.methods)
        }
    assert counts == {max(1, tuning.trials)}
    assert recipe.tuning.points == 6 and tuning.seed == 1000
