"""The three files of a report: right numbers, self-contained, safe against any text, also for unfinished studies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.report import write_report
from attentiondrop.experiments.studies.plan import Ablation, Comparison, Entry, Grid, write_study

from .pages import Maker, written


def test_the_numbers_of_a_comparison(comparison: Maker, tmp_path: Path) -> None:
    endings = {"none": [0.90, 0.92, 0.94], "hard(p=0.1,k=5)": [0.91, 0.94, 0.97]}
    page, markdown, rows = written(comparison(tmp_path, endings, memory=True))
    results = page.table("Test accuracy, mean")
    assert results["none"][:3] == ["3 of 3", "92.00 ± 2.00", "baseline"]
    assert results["hard(p=0.1,k=5)"][:3] == ["3 of 3", "94.00 ± 3.00", "+2.00 [\u22120.48, +4.48]"]
    assert page.table("Test accuracy of every run")["hard(p=0.1,k=5)"] == ["91.00", "94.00", "97.00"]
    assert page.table("Accuracy under attack")["none"][1] == "73.60 ± 1.60"
    assert page.table("Training throughput")["hard(p=0.1,k=5)"][1] == "\u00d7 0.95 ± 0.00"
    # Samples a second, MiB and seconds, each beside its ratio or alone.
    assert page.table("Training throughput")["none"][::2] == ["910 ± 10", "100 ± 0", "19.0 ± 1.0"]
    assert "| `hard(p=0.1,k=5)` | 3 of 3 | 94.00 ± 3.00 | +2.00 [-0.48, +4.48] | 0.074 |" in markdown
    assert "Three seeds are too few" in markdown
    assert "No difference can be told from chance: every 95 % interval includes zero." in markdown
    assert [(row["method"], row["seed"], row["status"]) for row in rows][-1] == ("hard(p=0.1,k=5)", "2", "finished")
    assert float(rows[-1]["test_accuracy"]) == 0.97
    assert float(rows[-1]["accuracy_difference"]) == pytest.approx(0.03)
    assert float(rows[-1]["p_holm"]) == pytest.approx(0.0741799, rel=1e-5)
    assert rows[0]["p_holm"] == ""
    assert rows[0]["environment_torch"] == "2.15.0"
    assert float(rows[0]["accuracy_linf_0.01"]) == pytest.approx(0.72)


def test_scaled_errors_are_shown_and_explained_where_they_were_measured(comparison: Maker, tmp_path: Path) -> None:
    """Runs of older versions have none: their reports have no empty column and no sentence about it."""
    endings = {"none": [0.90, 0.92, 0.94], "hard(p=0.1,k=5)": [0.91, 0.94, 0.97]}
    folder = comparison(tmp_path, endings)
    page, markdown, rows = written(folder)
    assert "caled ECE" not in markdown and "after temperature scaling" not in markdown
    assert not {"test_ece_scaled", "test_temperature", "checksum_drawn"} & rows[0].keys()
    for at, file in enumerate(sorted(folder.glob("runs/*/*/result.json"))):
        result = json.loads(file.read_text(encoding="utf-8"))
        result["test"] |= {"ece_scaled": 0.01 * (at + 1), "nll_scaled": 0.4, "temperature": 0.8}
        file.write_text(json.dumps(result), encoding="utf-8")
    page, markdown, rows = written(folder)
    header = next(line for line in markdown.splitlines() if line.startswith("| Method | NLL"))
    assert header == "| Method | NLL | ECE, % | Scaled ECE, % | Brier | Top-5, % | Epochs to target |"
    assert page.table("Other scores")["none"][2] == "5.00 ± 1.00"  # the folder of `hard` comes first
    assert page.table("Differences to the baseline")["hard(p=0.1,k=5)"][2] == "\u22123.00"
    explained = "Scaled ECE: the ECE after temperature scaling: one number"
    assert markdown.count(explained) == 2  # below both tables that have it
    assert "\nNLL: " not in markdown  # other labels need no sentence
    assert (
        "| Method | NLL | ECE, points | Scaled ECE, points | Brier |" in markdown.splitlines()
    )  # top-5 is not compared
    assert [(row["test_ece_scaled"], row["test_temperature"]) for row in rows[:1]] == [("0.04", "0.8")]


def test_before_any_run_has_ended_the_compared_metrics_have_their_columns(comparison: Maker, tmp_path: Path) -> None:
    _, markdown, _ = written(comparison(tmp_path, {"none": [None, None], "hard(p=0.1,k=5)": [None, None]}))
    header = next(line for line in markdown.splitlines() if line.startswith("| Method | NLL"))
    assert header == "| Method | NLL | ECE, % | Scaled ECE, % | Brier | Epochs to target |"


def test_only_what_remains_after_correction_is_marked(comparison: Maker, tmp_path: Path) -> None:
    endings = {
        "none": [0.90, 0.91, 0.90, 0.92, 0.91],
        "dropkey(p=0.1)": [0.95, 0.96, 0.96, 0.97, 0.95],
        "dropkey(p=0.2)": [0.99, 0.85, 0.99, 0.80, 0.99],
    }
    page, markdown, _ = written(comparison(tmp_path, endings))
    results = page.table("Test accuracy, mean")
    assert results["dropkey(p=0.1)"][2].endswith("] *")
    assert results["dropkey(p=0.2)"][2].endswith("]")
    after = "In points, after Holm's correction for 2 comparisons, `dropkey(p=0.1)` is above the baseline"
    assert f"{after} (+5.00, +3.89 to +6.11)." in markdown
    assert "For the other one, the interval includes zero." in markdown
    assert "2 comparisons were made" in markdown and "Here 1 does, and 1 remains after Holm's correction" in markdown


def test_an_interval_that_excludes_zero_is_no_mark_where_correction_takes_it_back(
    comparison: Maker, tmp_path: Path
) -> None:
    # p = 0.03 for this comparison alone; 0.09 after the correction for three comparisons.
    endings = {
        "none": [0.90, 0.90, 0.90, 0.90],
        "dropkey(p=0.1)": [0.91, 0.92, 0.93, 0.94],
        "dropkey(p=0.2)": [0.91, 0.89, 0.92, 0.88],
        "dropkey(p=0.3)": [0.88, 0.92, 0.89, 0.91],
    }
    page, markdown, rows = written(comparison(tmp_path, endings))
    found = page.table("Test accuracy, mean")["dropkey(p=0.1)"]
    assert found[2] == "+2.50 [+0.45, +4.55]" and found[4] == "0.091"
    assert not [cell for table in page.tables.values() for row in table for cell in row if cell.endswith("*")]
    assert not [1 for _, attributes in page.tags if "marked" in (attributes.get("class") or "")]
    assert (
        "No difference remains after Holm's correction for 3 comparisons. In points, without that correction,"
        in markdown
    )
    assert "Here 1 does, and none remains after Holm's correction for that" in markdown
    assert r"] \*" not in markdown
    assert float(rows[4]["p_value"]) < 0.05 < float(rows[4]["p_holm"])


def test_a_single_seed_has_no_interval(comparison: Maker, tmp_path: Path) -> None:
    page, markdown, rows = written(comparison(tmp_path, {"none": [0.9], "blur": [0.95]}))
    assert page.table("Test accuracy, mean")["blur"][1:3] == ["95.00", "+5.00"]
    assert "There are no intervals, so no difference can be told from chance." in markdown
    assert "One seed is too few to tell the methods apart, and gives no interval" in markdown
    assert rows[1]["p_value"] == ""


def test_an_unfinished_study_says_what_is_missing(comparison: Maker, tmp_path: Path) -> None:
    endings = {
        "none": [0.9, 0.91, None],
        "blur": ["diverged", "failed", "damaged"],
        "dropkey(p=0.1)": [None, None, "unfinished"],
    }
    page, markdown, rows = written(comparison(tmp_path, endings))
    assert page.table("Test accuracy of every run")["blur"] == ["diverged", "failed", "damaged"]
    assert page.table("Test accuracy, mean")["blur"][:3] == ["0 of 3", "\u2013", "\u2013"]
    failed = page.tables["7 of 9 runs without scores"]
    assert [row[3] for row in failed[1:]] == [
        "missing",
        "diverged",
        "failed",
        "damaged",
        "missing",
        "missing",
        "unfinished",
    ]
    assert "2 runs diverged or failed and count in no mean" in markdown
    assert [row["status"] for row in rows].count("missing") == 3
    assert rows[4]["detail"] == "after 2 epochs: RuntimeError: out of memory"


@pytest.mark.parametrize("method", ["none", None])
def test_a_study_that_has_not_begun_renders(method: str | None, tmp_path: Path) -> None:
    write_study(
        tmp_path, Comparison("c", {}, [0, 1], 7, [Entry("none", method, []), Entry("hard", None, ["hard(p=0.5)"])])
    )
    page, markdown, _ = written(tmp_path)
    assert "has no finished run yet" in markdown
    assert "No run has been recorded yet." in markdown
    assert "Still being tuned" in markdown
    assert page.table("Tried on the validation part, with seed 7")["hard"][:2] == ["hard(p=0.5)", "missing"]
    assert page.labels == []


def test_an_ablation_alone(ablation: Maker, tmp_path: Path) -> None:
    def ending(point: tuple[float, int], seed: int) -> float | str:
        return "diverged" if point == (0.2, 5) else 0.9 + 0.003 * seed + point[0] / 10

    page, markdown, rows = written(ablation(tmp_path, {"p": [0.1, 0.2], "k": [1, 5]}, ending))
    (heat,) = [rows for caption, rows in page.tables.items() if "difference of validation accuracy" in caption]
    assert heat[0][1] == "k" and heat[1] == ["p", "1", "5"]
    assert heat[2][0] == "0.1" and heat[2][1] == "+1.10 [+0.85, +1.35] *"
    assert heat[3][2] == "3 diverged"
    assert "# digits demo: ablation" in markdown and "## Results" not in markdown
    assert "The ablation varies `hard` over `p` and `k`, 3 seeds each on `digits`" in markdown
    assert len(rows) == 15


def test_one_axis_is_a_line_with_its_table(ablation: Maker, tmp_path: Path) -> None:
    out = ablation(
        tmp_path, {"p": [0.1, 0.2, 0.3]}, lambda point, seed: 0.9 + 0.003 * seed + point[0] / 10, name="dropkey"
    )
    page, _, _ = written(out)
    (label,) = [label for label in page.labels if "by p" in label]
    assert "+1.10 at 0.1; +2.10 at 0.2; +3.10 at 0.3." in label
    assert page.table("dropkey by p")["0.2"][:2] == ["dropkey(p=0.2)", "92.30 ± 0.30"]


def test_one_point_is_no_line(ablation: Maker, tmp_path: Path) -> None:
    page, _, _ = written(ablation(tmp_path, {"p": [0.1]}, lambda point, seed: 0.9, name="dropkey"))
    assert page.labels == []


def test_what_must_be_known_first_stands_above_the_numbers(full_study: Path) -> None:
    _, markdown, _ = written(full_study)
    found = re.search(
        r"(\d+) of (\d+) intervals exclude zero \(by chance alone, about 1 in 20 would\); (.*)\*\*", markdown
    )
    assert found is not None and found[3].endswith(f"marks what remains after Holm's correction for all {found[2]}")
    times = markdown.partition("## Score against training time")[2]
    busy = "Other programs on the machine may have slowed it down."
    assert times.index(busy) < times.index("Training seconds of a run") and times.count(busy) == 1


def test_bootstrap_intervals_exclude_zero_more_often_by_chance(full_study: Path) -> None:
    found = write_report(full_study, "bootstrap").markdown.read_text(encoding="utf-8")
    chance = "1 in 6 with 5 seeds or 1 in 10 with 10"
    assert f"of 95 % intervals, {chance} excludes zero by chance alone" in found
    assert f"intervals exclude zero (by chance alone, about {chance} would)" in found and "1 in 20" not in found


def test_every_section_of_a_full_study(full_study: Path) -> None:
    page, markdown, rows = written(full_study)
    text = (full_study / "report.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h2[^>]*>([^<]*)</h2>", text)
    assert headings == [
        "Results",
        "Differences",
        "Score against training time",
        "Training",
        "Calibration",
        "Robustness",
        "Ablation",
        "Cost",
        "Tuning",
        "Sizes and methods",
        "What failed",
        "Environment",
        "Run it again",
    ]
    assert re.findall(r"^## (.*)$", markdown, re.M) == [h for h in headings if h != "Training"]
    titles = [label.split(" by epoch")[0] for label in page.labels if " by epoch" in label]
    assert titles == [
        "Validation accuracy",
        "Training loss",
        "Gradient variance",
        "Convergence",
        "Attention entropy of the model",
        "Attention entropy in training",
    ]
    assert sum(label.startswith("Reliability of") for label in page.labels) == 7
    assert page.table("Accuracy under attack")["dropkey(p=0.1)"][-1] == "doubtful in 1 of 4 runs"
    assert "the loss did not rise with the steps (1 of 4 runs)" in markdown
    picked = [row for row in page.tables["Tried on the validation part, with seed 1000"] if row[-1] == "picked"]
    assert [row[1] for row in picked] == ["hard(p=0.1,k=5)", "blur(sigma_max=0.5)"]
    assert page.table("Recorded with 89 runs")["commit"] == ["abc1234"]
    assert "attentiondrop compare digits --seeds 5" in markdown
    assert '"learning_rate": 0.002' in markdown
    assert len(rows) == 91
    assert all(row["test_accuracy"] == "" for row in rows if row["part"] != "runs")
    assert all(row["test_accuracy"] for row in rows if row["part"] == "runs" and row["status"] == "finished")


def test_the_same_study_gives_the_same_files(full_study: Path) -> None:
    first = [path.read_bytes() for path in vars(write_report(full_study)).values()]
    assert first == [path.read_bytes() for path in vars(write_report(full_study)).values()]


def test_what_was_not_measured_is_said_not_drawn(comparison: Maker, tmp_path: Path) -> None:
    page, markdown, _ = written(comparison(tmp_path, {"none": [0.9, 0.91], "blur": [0.92, 0.9]}, measured=False))
    assert not any("Gradient variance" in label for label in page.labels)
    assert "Not measured in these runs: gradient variance, attention entropy of the model" in markdown
    assert "Peak memory is measured on accelerators only." in markdown


def test_the_page_is_accessible_and_needs_nothing_else(full_study: Path) -> None:
    page, _, _ = written(full_study)
    text = (full_study / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<script|<link|<img|<iframe|javascript:", text)
    assert text.startswith("<!DOCTYPE html>\n<html")
    names = [name for name, _ in page.tags]
    assert (
        names.count("h1") == names.count("main") == names.count("nav") == names.count("title") - len(page.plots()) == 1
    )
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert names.count("caption") == names.count("table") == len(page.tables)
    for name, attributes in page.tags:
        if name == "th":
            assert attributes["scope"] in ("row", "col", "colgroup")
        if name == "svg" and attributes.get("role") != "img":
            assert attributes["aria-hidden"] == "true"
        if name == "a":
            assert ("section", attributes["href"][1:]) in [(n, a.get("id")) for n, a in page.tags]
    for label in page.plots():
        assert re.search(r"\d", label), "the label of a plot tells its numbers"
    identifiers = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))


def test_no_text_of_a_study_becomes_markup(comparison: Maker, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>&<img src=x onerror=alert(1)>|`x`\n# heading"
    settings = {"name": evil, "size": evil, "data": {"name": evil}, "model": {"name": evil}, "training": {"epochs": 3}}
    out = comparison(tmp_path, {"none": [0.9, 0.91], "blur": ["failed", 0.9]}, error=evil, settings=settings)
    write_study(
        out,
        Comparison(
            f"attentiondrop compare {evil}",
            settings,
            [0, 1],
            0,
            [Entry(evil, "none", []), Entry(evil, "blur", ["blur"])],
        ),
    )
    request = out / "runs" / "none" / "seed0" / "run.json"
    request.write_text(request.read_text().replace("abc1234", "<b>&amp;").replace('"commit"', '"<u>"'))
    page, markdown, rows = written(out)
    assert not {"script", "img", "b", "u"} & {name for name, _ in page.tags}
    assert any("<script>alert(1)</script>" in row[-1] for row in page.tables["2 of 5 runs without scores"][1:])
    outside_code = re.sub(r"```.*?```|`[^`]*`", "", markdown, flags=re.S)
    assert "<script" not in outside_code and "<img" not in outside_code
    assert not re.search(r"^# heading", outside_code, re.M)
    assert rows[2]["detail"].endswith("# heading")


def test_limited_data_and_noise_are_in_the_summary(comparison: Maker, tmp_path: Path) -> None:
    data = {"name": "cifar10", "label_noise": 0.2, "train_fraction": 0.1, "limit": 500}
    settings = {"name": "cifar10", "data": data, "model": {"name": "vit"}, "training": {"epochs": 3}}
    _, markdown, _ = written(comparison(tmp_path, {"none": [0.9, 0.91]}, settings=settings))
    assert (
        "20 % of the training labels replaced by wrong ones; 10 % of the training images; at most 500 images"
        in markdown
    )


def test_a_folder_without_a_study_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match="expected the folder of `attentiondrop compare` or `ablate`, found neither"
    ):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_report_loads_neither_a_framework_nor_matplotlib(ablation: Maker, tmp_path: Path) -> None:
    ablation(tmp_path, {"p": [0.1, 0.2]}, lambda point, seed: 0.9, name="dropkey", seeds=1)
    code = (
        "import sys; from pathlib import Path; from attentiondrop.experiments.report import write_report; "
        "write_report(Path(sys.argv[1])); "
        "print([name for name in ('torch', 'matplotlib', 'scipy', 'rich', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_grids_without_fields_of_their_own_still_render(tmp_path: Path) -> None:
    write_study(tmp_path, Ablation("c", {}, [0], [Grid("none", {"p": [0.1]}, ["none"])], "none"))
    _, markdown, _ = written(tmp_path)
    assert "The baseline `none` has no finished run there." in markdown


def test_a_part_that_no_run_was_scored_on_keeps_its_columns(comparison: Maker, tmp_path: Path) -> None:
    """So a script that reads them also works where all runs failed."""
    folder = comparison(tmp_path, {"none": [0.90, 0.92, 0.94]})
    for file in folder.glob("runs/*/*/result.json"):
        result = json.loads(file.read_text(encoding="utf-8"))
        failed = {"status": "failed", "error": "no memory", "validation": None, "test": None, "reliability": None}
        file.write_text(json.dumps(result | failed), encoding="utf-8")
    *_, (row, *_) = written(folder)
    assert row["status"] == "failed" and row["test_accuracy"] == row["validation_accuracy"] == ""
