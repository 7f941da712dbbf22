"""Tables of docs/evidence with runs that went wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attentiondrop.experiments.tasks.metrics import CLASS_METRICS


@pytest.fixture
def tables(docs_module: Callable[[str], Any]) -> Any:
    return docs_module("tables")


def test_a_method_without_a_finished_run_is_no_baseline(tables: Any, tmp_path: Path) -> None:
    lines = ["method,seed,part,status,test_accuracy"]
    lines += [f"{method},{seed},runs,finished,0.7{seed}" for method in ("none", "blur") for seed in range(3)]
    lines += [f"hard,{seed},runs,diverged," for seed in range(3)]
    (tmp_path / "results.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text("task: classification\n", encoding="utf-8")
    found = [line.split(" | ") for line in tables.table(tables.read(tmp_path)).splitlines()[2:]]
    assert [cells[3] for cells in found] == ["baseline", "0.00", "-"]
    assert found[2][1:3] == ["0 of 3", "-"] and found[2][6].strip(" |") == "no finished run"


def test_an_interval_that_is_cut_off_ends_in_arrows(tables: Any) -> None:
    """Two seeds give a wide interval. It does not widen the axis, which would make the others specks."""
    base = {seed: 0.7 + 0.003 * (seed % 4) for seed in range(10)}
    near = [{seed: x + 0.004 + 0.001 * ((seed * k) % 5) for seed, x in base.items()} for k in (1, 2, 3, 4, 6)]
    wide = {0: base[0] + 0.02, 1: base[1] - 0.015}
    differences = tables.corrected([tables.paired_difference(each, base) for each in (*near, wide)])
    arrow = re.compile(r"M\d+ ([\d.]+)l(-?8) -5v10z")

    def drawn(count: int) -> list[tuple[str, str]]:
        methods = [tables.Method(f"m{n}", {}, 1, each, None, {}) for n, each in enumerate(differences[:count])]
        baseline = tables.Method("none", base, 10, None, None, {})
        return arrow.findall(tables.forest(tables.Study(CLASS_METRICS.primary, [baseline, *methods])))

    assert drawn(5) == []
    (first, second) = drawn(6)
    assert first[0] == second[0] and {first[1], second[1]} == {"8", "-8"}


def test_names_of_methods_are_whole_in_the_figures(tables: Any) -> None:
    """A method of two parts, with all that it sets, fits: it is what readers look for."""
    folder = Path(tables.__file__).parent / "results" / "cifar10-20pct-controls"
    study = tables.read(folder)
    for drawn in (tables.forest(study), tables.against_time(study)):
        width = int(re.search(r'viewBox="0 0 (\d+)', drawn)[1])
        for place, label in re.findall(r'<text x="(\d+)" y="[\d.]+" class="code">([^<]*)', drawn):
            assert label in {one.label for one in study.methods} and int(place) + 6.7 * len(label) < width
