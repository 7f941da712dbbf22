"""All examples are short, say what they show, and the notebook runs as it is committed: without outputs."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_what_it_shows(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    about = ast.get_docstring(ast.parse(text)) or ""
    assert about.splitlines()[0].endswith(".") and f"examples/{path.name}" in about


def test_every_example_is_run_by_a_test() -> None:
    tests = [path for path in Path(__file__).parent.rglob("test_*.py") if path != Path(__file__)]
    text = "\n".join(path.read_text(encoding="utf-8") for path in tests)
    assert [path.name for path in SCRIPTS if f'"{path.name}"' not in text] == []
    assert len(SCRIPTS) > 10 and len(NOTEBOOKS) == 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("timm")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), "outputs are not committed"
    for (
        cell
    ) in code:  # once over the data, and methods of the command line without a dry run, which have tests elsewhere
        cell.source = cell.source.replace("EPOCHS = 10", "EPOCHS = 1")
        cell.source = cell.source.replace("!attentiondrop compare", "#")
    # The commands of the notebook are those of this Python.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
    printed = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert "3 x Attention  hard(p=0.1,k=5)" in printed
    assert "accuracy 0." in printed and "bit by bit" in printed
    assert "hard(p=0.1,k=5)\n" in printed  # of `attentiondrop methods`
