"""docs/methods.md is what docs/methods_table.py writes now, and its picture of costs comes from a file."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def program():
    spec = importlib.util.spec_from_file_location("methods_table", ROOT / "docs" / "methods_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(program) -> None:
    page = program.PAGE.read_text(encoding="utf-8")
    assert program.renewed(page) == page, "run python docs/methods_table.py"
    assert program.renewed(program.renewed(page)) == program.renewed(page)


def test_each_group_has_all_its_methods(program) -> None:
    """In its table, or named below it if they are in a table above."""
    _, *parts = program.tables().split("### ")
    for part in parts:
        group = part[part.index("--methods ") :].split()[1].strip("`)")
        found = sum(row.startswith("| `") for row in part.splitlines())
        if "This group has " in part:
            found += int(part.split("This group has ")[1].split()[0])
        assert found == len(program.groups()[group]), group
    assert "This group has 1 more, in a table above: `noise`." in program.tables()


def test_what_is_not_as_usual_is_said_below_a_table(program) -> None:
    below = {part.split(" (")[0]: part for part in program.tables().split("### ")[1:]}
    assert "**Evaluation is changed** by: `headpruning`." in below["Weights"]
    structure = below["Attention that is built otherwise"]
    assert "**Evaluation is changed** by: all methods of this group." in structure
    assert "**A step cannot be captured** with `lsh`: " in structure
    assert not [title for title in ("Ours", "Attention", "Data") if "**" in below[title]]


def test_a_table_explains_each_part_once(program) -> None:
    (row,) = [
        row for row in program.tables().splitlines() if row.startswith("| `hard(p=0.1,k=5)+consistency(weight=0.5)`")
    ]
    assert "| *logits, the loss:* `hard`, as above; task loss + " in row
    assert "| *logits, the loss:* `noise` and `consistency`, as above<br>Source: " in program.tables()


def line(model: str, method: str, cost: float | None, commit: str = "c", date: str = "2026-01") -> dict[str, object]:
    about = {"device": "D", "torch": "2", "commit": commit, "date": date}
    return {"model": model, "method": method, "cost": cost, **about}


def write(path: Path, lines: list[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def test_costs_of_a_run_that_was_stopped_and_continued(program, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    lines = [line("small", "mixup", 1.0), line("small", "cutmix", None), line("vit-b16", "mixup", 2.0)]
    write(tmp_path / "methods-a.csv", lines)
    found = program.tables()
    assert "from [one run](../benchmarks/results/methods-a.md) (D, torch 2, 2026-01)" in found
    rows = {row.split("(")[0]: row for row in found.splitlines() if row.startswith(("| `mixup(", "| `cutmix("))}
    assert "| 1.00 | 2.00 |" in rows["| `mixup"] and "| - | - |" in rows["| `cutmix"]
    write(tmp_path / "methods-a.csv", [*lines, line("vit-b16", "cutmix", 3.0, "d", "2026-02")])
    assert "[2 runs on one GPU](../benchmarks/results/methods-a.md) (D, torch 2, 2026-02)" in (program.tables())


def test_costs_come_from_the_newest_file_of_a_gpu(program, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    assert "not been measured" in program.tables()
    for name, date, cost in (
        ("methods-x-cpu", "2026-03", 9.0),
        ("methods-a", "2026-01", 8.0),
        ("methods-b", "2026-02", 7.0),
    ):
        write(tmp_path / f"{name}.csv", [line("small", "mixup", cost, date=date)])
    found = program.tables()
    (row,) = [row for row in found.splitlines() if row.startswith("| `mixup(")]
    assert "| 7.00 | - |" in row and "results/methods-b.md" in found
