"""The pages of docs/evidence say what the committed result files say, and the recipes of the protocol can be read."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path

import pytest

from attentiondrop.experiments.config.recipe_files import read_recipe, shipped
from attentiondrop.experiments.methods.grids import candidates
from attentiondrop.experiments.methods.groups import expanded

WRITE = Path(__file__).parents[2] / "docs" / "evidence" / "write.py"


def test_docs_and_result_files_agree(monkeypatch, capsys) -> None:
    spec = importlib.util.spec_from_file_location("evidence_write", WRITE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch, warnings.catch_warnings(action="ignore"):
        patch.setattr(sys, "path", [*sys.path])
        spec.loader.exec_module(module)
        status = module.main(["--check"])
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in shipped() if name.startswith("evidence/")])
def test_every_method_of_a_study_has_as_many_trials(name: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        recipe = read_recipe(name)
        tuning = recipe.tuning
        counts = {
            len(candidates(text, tuning.trials, tuning.seed, tuning.grids, tuning.points))
            for text in expanded(recipe.methods)
        }
    assert counts == {max(1, tuning.trials)}
    assert recipe.tuning.points == 6 and tuning.seed == 1000
