"""The table on a terminal: its content, its width, and that only differences with an interval are marked."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.analysis.summary import Summary
from attentiondrop.experiments.report.terminal import notes, render, show
from attentiondrop.experiments.report.whole_tables import narrowest
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.runs.kinds import FINAL, VARIED
from attentiondrop.experiments.runs.store import Request, Result, write_request, write_result
from attentiondrop.experiments.studies.plan import Ablation, Comparison, Entry, Grid, read_study, write_study

from ..conftest import scored, write_epochs

RECIPE = {"name": "digits", "size": "demo", "model": {"name": "vit_digits"}, "training": {"epochs": 1}}


def run(out: Path, method: str, seed: int, accuracy: float | str | None, part: str = FINAL) -> None:
    """The accuracy is on the part of the data that counts for such a run; the other part has another one."""
    folder = run_folder(out, method, seed, part)
    if accuracy is None:
        return
    write_request(folder, Request(method, seed, RECIPE, {}), {})
    if isinstance(accuracy, str):
        write_result(folder, Result(accuracy, 1.0, 0, error="boom"))
        return
    validation = scored(accuracy if part != FINAL else 1 - accuracy, nll=0.7, ece=0.3, brier=0.3)
    test = scored(accuracy, nll=0.5, ece=0.02 + seed / 100, brier=0.1) if part == FINAL else None
    write_epochs(folder, 1)
    write_result(folder, Result("finished", 10.0, 1, validation=validation, test=test, throughput=1234.5))


def summary(out: Path, accuracies: dict[str, list[float | str | None]]) -> Summary:
    seeds = list(range(len(next(iter(accuracies.values())))))
    methods = [Entry(method, method, []) for method in accuracies]
    write_study(out, Comparison("attentiondrop compare", RECIPE, seeds, 0, methods))
    for method, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            run(out, method, seed, accuracy)
    return summarise(read_study(out))


def shown(found: Summary, width: int = 100, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    show(found, Console(file=file, width=width, highlight=False))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_numbers_of_the_table(tmp_path: Path) -> None:
    text = shown(summary(tmp_path, {"none": [0.90, 0.92, 0.94], "hard(p=0.1,k=5)": [0.91, 0.94, 0.97]}))
    assert "digits demo, vit_digits, 1 epoch: mean ± standard deviation over the seeds" in text
    lines = {line.split()[0]: line for line in text.splitlines() if "±" in line and ":" not in line}
    assert "92.0 ± 2.0" in lines["none"] and "baseline" in lines["none"]
    # Differences of 1, 2 and 3 points: 2 ± 4.3027 / sqrt(3).
    assert "+2.0 [-0.5, +4.5]" in lines["hard(p=0.1,k=5)"]
    assert "0.500 ± 0.000" in lines["none"]
    assert "3.0 ± 1.0" in lines["none"]
    assert lines["none"].split()[-1] == "1234"


@pytest.mark.parametrize(("width", "count"), [(100, 3), (80, 2), (70, 1), (60, 0), (20, 0)])
def test_no_number_is_ever_cut(width: int, count: int, tmp_path: Path) -> None:
    """Columns are left out, and named. What is left may be wider than the terminal."""
    found = summary(tmp_path, {"none": [0.90, 0.12, 0.94], "hard(p=0.1,k=5)": [0.91, 0.94, 0.17]})
    text = " ".join(shown(found, width).split())
    assert "digits demo, vit_digits, 1 epoch: mean ± standard deviation over the seeds" in text
    assert "hard(p=0.1,k=5) " in text and "65.3 ± 46.2" in text and "+2.0 [-195.5, +199.5]" in text
    assert [cell in text for cell in CELLS.values()] == [True] * count + [False] * (3 - count)
    left_out = ", ".join(reversed(list(CELLS)[count:]))
    assert (f"too narrow for: {left_out}. The report" in text) == (count < 3)


def test_a_table_that_just_fits_keeps_its_columns(tmp_path: Path) -> None:
    found = summary(tmp_path, {"none": [0.90, 0.12], "hard(p=0.1,k=5)": [0.91, 0.94]})
    width = narrowest(render(found), Console(width=200))
    assert "too narrow" not in shown(found, width) and "too narrow for: samples/s." in shown(found, width - 1)


def test_a_long_name_has_several_lines(tmp_path: Path) -> None:
    name = "hard(p=0.1,k=5)+noise(sigma=0.25)+consistency(weight=0.5,task=mean)"
    lines = shown(summary(tmp_path, {"none": [0.9, 0.8], name: [0.91, 0.94]}), width=80).splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith(" hard"))
    found = [line.split()[0] for line in lines[at : at + 4]]
    assert found == ["hard(p=0.1,k=5)", "+noise(sigma=0.25)", "+consistency(weight=0.5,", "task=mean)"]


#: Columns that may be left out, the last one first, and a cell of each in `test_no_number_is_ever_cut`.
CELLS = {"NLL": "0.500 ± 0.000", "ECE %": "3.0 ± 1.0", "samples/s": "1234"}


def test_only_what_remains_after_correction_is_marked(tmp_path: Path) -> None:
    found = summary(
        tmp_path,
        {
            "none": [0.90, 0.91, 0.90, 0.92, 0.91],
            "hard(p=0.1,k=5)": [0.95, 0.96, 0.96, 0.97, 0.95],
            "blur(sigma_max=0.5)": [0.99, 0.85, 0.99, 0.80, 0.99],
        },
    )
    text = shown(found)
    marked = [line.split()[0] for line in text.splitlines() if "] *" in line]
    assert marked == ["hard(p=0.1,k=5)"]
    assert "2 comparisons were made" in text
    assert "too few" not in text
    assert "* marks what remains after Holm's correction for 2 comparisons" in text
    assert "\x1b" not in text


def test_an_interval_without_zero_is_no_mark_where_correction_takes_it_back(tmp_path: Path) -> None:
    endings = {
        "none": [0.90, 0.90, 0.90, 0.90],
        "dropkey(p=0.1)": [0.91, 0.92, 0.93, 0.94],
        "dropkey(p=0.2)": [0.91, 0.89, 0.92, 0.88],
        "dropkey(p=0.3)": [0.88, 0.92, 0.89, 0.91],
    }
    text = shown(summary(tmp_path, endings))
    assert "+2.5 [+0.4, +4.6]" in text and "] *" not in text
    assert "3 comparisons were made: of 95 % intervals, 1 in 20 excludes zero by chance alone. Here 1 does, and" in text
    assert "none remains after Holm's correction for that" in text


def test_one_seed_has_neither_deviation_nor_interval(tmp_path: Path) -> None:
    found = summary(tmp_path, {"none": [0.9], "dropout(p=0.1)": [0.95]})
    text = shown(found)
    assert "±" not in text.split("seeds", 1)[1]
    assert "+5.0" in text and "[" not in text and "*" not in text
    assert "One seed is too few" in text


def test_runs_without_scores_are_counted_and_named(tmp_path: Path) -> None:
    found = summary(
        tmp_path,
        {
            "none": [0.9, 0.91, 0.92],
            "dropout(p=0.1)": ["diverged", "failed", 0.95],
            "drophead(p=0.1)": ["diverged", "diverged", None],
        },
    )
    text = shown(found)
    assert "2 of 3" in text and "3 of 3" in text
    said = "dropout(p=0.1): 1 diverged, 1 failed of 3 runs; means are over the others, and the difference over 1 pair."
    assert said in text and "left out of the" not in text  # one line for each method
    assert "drophead(p=0.1): 2 diverged, 1 missing of 3 runs." in text


def test_runs_that_only_the_baseline_lacks_are_named(tmp_path: Path) -> None:
    endings = {"none": [0.9, 0.91, "failed", "failed"], "dropout(p=0.1)": [0.9, 0.92, 0.93, 0.94]}
    text = shown(summary(tmp_path, endings))
    assert "dropout(p=0.1): seeds 2, 3 left out of the difference, since the baseline did not finish there; 2" in text
    assert "none: 2 failed of 4 runs; means are over the others." in text
    assert "dropout(p=0.1): 2" not in text


def test_notes_keep_what_a_method_has_in_brackets(tmp_path: Path) -> None:
    """rich would take it for a style."""
    name = "noise(sigma=layers(values=[linear(start=0.0,end=0.5)]))"
    text = shown(summary(tmp_path, {"none": [0.9, 0.8], name: ["diverged", 0.9]}))
    assert f"\n{name}: 1 diverged of 2 runs; means are over the others, and the difference over 1 pair." in text


def test_equal_differences_are_said_not_marked(tmp_path: Path) -> None:
    found = summary(tmp_path, {"none": [0.9, 0.8], "dropout(p=0.1)": [0.95, 0.85]})
    assert "dropout(p=0.1): the same difference on all 2 seeds, which gives no interval." in notes(found)
    assert "+5.0" in shown(found) and "*" not in shown(found)


def test_runs_of_another_recipe_are_left_out_and_said(tmp_path: Path) -> None:
    summary(tmp_path, {"none": [0.9, 0.8]})
    settings = RECIPE | {"training": {"epochs": 8}}
    write_study(tmp_path, Comparison("c", settings, [0, 1], 0, [Entry("none", "none", [])]))
    found = summarise(read_study(tmp_path))
    assert found.rows[0].scores == {}
    assert notes(found) == [
        "none: 2 of another recipe of 2 runs.",
        "Left out: 2 runs of another recipe (recorded -> here: training.epochs 1 -> 8), in runs/none/seed0 and 1 more.",
    ]


def test_a_table_of_seven_methods_fits_100_columns(tmp_path: Path) -> None:
    methods = ["none", "dropout(p=0.1)", "hard(p=0.1,k=5)", "blur(sigma_max=0.5)", "dropkey(p=0.1)", "noise(sigma=0.1)"]
    every = [*methods, "hard+blur(sigma_max=0.25)+dropkey"]
    found = summary(tmp_path, {name: [0.9, 0.9 - len(name) ** 2 / 9999, "diverged", 0.9] for name in every})
    lines = shown(found).splitlines()
    table = lines[: next(index for index, line in enumerate(lines) if line.startswith("Difference:"))]
    assert max(len(line) for line in table) <= 100
    assert all(any(line.strip().startswith(name) for line in table) for name in methods)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_console_without_utf8_gets_plain_signs(encoding: str, tmp_path: Path) -> None:
    found = summary(tmp_path, {"none": [0.9, 0.92], "dropout(p=0.1)": [0.95, 0.9]})
    text = shown(found, encoding=encoding)
    assert "91.0 +- 1.4" in text
    assert text.isascii()


def test_a_method_that_is_being_tuned_has_no_numbers(tmp_path: Path) -> None:
    write_study(tmp_path, Comparison("c", RECIPE, [0], 0, [Entry("none", "none", []), Entry("hard", None, [])]))
    run(tmp_path, "none", 0, 0.9)
    text = shown(summarise(read_study(tmp_path)))
    assert "hard (being tuned)" in text
    assert "Still being tuned: hard." in text


def test_ablations_are_tables_too(tmp_path: Path) -> None:
    grid = Grid("dropkey", {"p": [0.1, 0.2]}, ["dropkey(p=0.1)", "dropkey(p=0.2)"])
    write_study(tmp_path, Ablation("attentiondrop ablate", RECIPE, [0, 1, 2], [grid], "none", part=VARIED))
    for seed in range(3):
        run(tmp_path, "none", seed, 0.90 + 0.01 * seed, VARIED)
        run(tmp_path, "dropkey(p=0.1)", seed, 0.91 + 0.02 * seed, VARIED)
    text = shown(summarise(read_study(tmp_path)))
    assert "dropkey, validation part" in text
    assert "+2.0 [-0.5, +4.5]" in text
    assert "3 of 3" in text
    assert "* marks what remains after Holm's correction for 1 comparison, of which 0 exclude zero without it" in text
    assert render(summarise(read_study(tmp_path))).row_count == 0
