"""The pages of docs/evidence say what the committed result files say, and the recipes of the protocol can be read."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from attentiondrop.experiments.config.recipe_files import read_recipe, shipped
from attentiondrop.experiments.methods.grids import candidates
from attentiondrop.experiments.methods.groups import expanded

WRITE = Path(__file__).parents[2] / "docs" / "evidence" / "write.py"


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program behind `make evidence`."""
    spec = importlib.util.spec_from_file_location("evidence_write", WRITE)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "evidence_write", found)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(found)
    with warnings.catch_warnings(action="ignore"):
        yield found
    for name in ("plan", "tables"):
        sys.modules.pop(name, None)


def test_docs_and_result_files_agree(writer, capsys) -> None:
    assert writer.main(["--check"]) == 0, capsys.readouterr().out


def test_a_changed_result_is_noticed(writer, capsys, tmp_path, monkeypatch) -> None:
    (page, *_) = writer.PAGES
    results = Path(shutil.copytree(page.results, tmp_path / "results")) / "results.csv"
    text = results.read_text(encoding="utf-8")
    assert text.count("none,0,runs,finished,0.6541,") == 1
    results.write_text(text.replace("none,0,runs,finished,0.6541,", "none,0,runs,finished,0.6641,"), encoding="utf-8")
    monkeypatch.setattr(writer, "PAGES", [dataclasses.replace(page, results=tmp_path / "results")])
    monkeypatch.setattr(writer, "protocol", dict)
    assert writer.main(["--check"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0].rpartition("/")[2] for line in said] == ["README.md", "cifar10-20pct-forest.svg"]


def test_results_that_no_page_shows_are_an_error(writer, tmp_path, monkeypatch) -> None:
    (tmp_path / "results" / "new").mkdir(parents=True)
    (tmp_path / "results" / "new" / "results.csv").touch()
    monkeypatch.setattr(writer, "HERE", tmp_path)
    with pytest.raises(SystemExit, match="results/new: expected an entry in PAGES"):
        writer.main(["--check"])


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
