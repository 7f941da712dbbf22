"""Readers of a page choose the baseline of the differences: who is offered, with which numbers, and where nobody is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from attentiondrop.experiments.analysis.collect import against, summarise
from attentiondrop.experiments.analysis.summary import Summary
from attentiondrop.experiments.report import write_summary
from attentiondrop.experiments.report.baselines import MOST, offered
from attentiondrop.experiments.studies.plan import read_study
from attentiondrop.experiments.tasks.metrics import CLASS_METRICS, Metrics

from .pages import Maker, Page

ENDS = {
    "none": [0.90, 0.91, 0.92, 0.905],
    "dropout(p=0.1)": [0.91, 0.915, 0.935, 0.912],
    "hard(p=0.1,k=5)": [0.95, 0.962, 0.97, 0.953],
    "blur(sigma_max=0.5)": [0.93, 0.95, 0.92, 0.94],
}
TRIALS = {
    "dropout(p=0.1)": {"dropout(p=0.1)": 0.9, "dropout(p=0.2)": 0.8},
    "hard(p=0.1,k=5)": {"hard(p=0.1,k=5)": 0.95, "hard(p=0.2,k=5)": 0.9},
}


def html_of(summary: Summary) -> str:
    return write_summary(summary).html.read_text(encoding="utf-8")


def radios(page: Page) -> list[dict[str, str | None]]:
    return [attributes for tag, attributes in page.tags if tag == "input"]


def forests(html: str) -> list[str]:
    """The table and the plots of every option, as they are written."""
    return [part.partition("</table>")[0] for part in html.split('<div class="option">')[1:]]


@pytest.mark.parametrize("interval", ["t", "bootstrap"])
def test_another_baseline_has_the_numbers_of_a_study_read_with_it(
    comparison: Maker, tmp_path: Path, interval: str
) -> None:
    study = read_study(comparison(tmp_path, ENDS, trials=TRIALS))
    summary = summarise(study, interval)
    for row in summary.rows:
        assert against(summary, row) == summarise(study, interval, row.label)


def test_each_method_can_be_chosen_and_has_the_forest_plot_of_its_own_report(comparison: Maker, tmp_path: Path) -> None:
    study = read_study(comparison(tmp_path, ENDS))
    html = html_of(summarise(study))
    page = Page(html)
    found = radios(page)
    assert [each["value"] for each in found] == list(ENDS)
    assert {(each["type"], each["name"]) for each in found} == {("radio", "baseline")}
    assert ["checked" in each for each in found] == [True, False, False, False]
    tags = [tag for tag, _ in page.tags]
    assert tags.count("fieldset") == tags.count("legend") == 1 and tags.count("label") == 4
    assert "The other sections of this page keep the baseline <code>none</code>." in html
    chosen = dict(zip(ENDS, forests(html), strict=True))
    for label in ENDS:
        other = html_of(summarise(study, baseline=label))
        assert forests(other)[0] == chosen[label]
        results = Page(other).table("Test accuracy, mean")
        rows = page.table(f"Paired differences to {label},")
        assert len(rows) == 4 and label not in rows
        assert rows["Method"][1:4] == ["Difference, points [95\u00a0%]", "after Holm [95\u00a0%]", "p (Holm)"]
        for method in ENDS.keys() - {label}:
            # As in the results of that report: the difference, and its p value after the correction.
            assert (rows[method][1], rows[method][3]) == (results[method][2], results[method][4])


def test_three_methods_are_enough_for_a_choice(comparison: Maker, tmp_path: Path) -> None:
    ends = {method: ENDS[method] for method in list(ENDS)[:3]}
    assert [row.label for row in offered(summarise(read_study(comparison(tmp_path, ends))))] == list(ends)


def test_the_baseline_of_the_report_comes_first(comparison: Maker, tmp_path: Path) -> None:
    study = read_study(comparison(tmp_path, ENDS))
    found = radios(Page(html_of(summarise(study, baseline="hard"))))
    assert [each["value"] for each in found if "checked" in each] == ["hard(p=0.1,k=5)"]
    assert [each["value"] for each in found][:2] == ["hard(p=0.1,k=5)", "none"]


def test_markdown_shows_the_baseline_of_the_report_alone(comparison: Maker, tmp_path: Path) -> None:
    text = write_summary(summarise(read_study(comparison(tmp_path, ENDS)))).markdown.read_text(encoding="utf-8")
    assert text.count("Paired differences to") == 1
    assert "| Method | Difference, points [95 %] | after Holm [95 %] | Better run [95 %] | Verdict |" in text
    assert "- Differences to another method: write the report again with `--baseline METHOD`." in text


@pytest.mark.parametrize(
    "methods",
    [
        {"none": [0.9, 0.91]},
        {"none": [0.9, 0.91], "hard(p=0.1,k=5)": [0.92, 0.94]},
        {"none": [0.9, 0.91], "hard(p=0.1,k=5)": [0.92, 0.94], "blur(sigma_max=0.5)": ["diverged", None]},
        {"none": [0.9, None], "hard(p=0.1,k=5)": [0.92, None], "blur(sigma_max=0.5)": ["diverged", 0.93]},
        {"none": ["diverged", None], "hard(p=0.1,k=5)": [0.92, 0.94], "blur": [0.9, 0.9], "dropkey": [0.8, 0.81]},
    ],
    ids=["one", "two", "two with scores", "two with the same seeds", "a baseline without scores"],
)
def test_without_three_methods_and_a_baseline_with_scores_there_is_nothing_to_choose(
    comparison: Maker, tmp_path: Path, methods: dict[str, list[float | str | None]]
) -> None:
    html = html_of(summarise(read_study(comparison(tmp_path, methods))))
    page = Page(html)
    assert radios(page) == [] and ":nth-of-type(" not in html and 'class="choice"' not in html
    shown = "none" in methods and methods["none"][0] == 0.9 and len(methods) > 1
    assert ("Differences to another method: write the report again" in html) == shown


def test_the_correction_counts_the_differences_to_the_chosen_baseline(comparison: Maker, tmp_path: Path) -> None:
    ends = {**ENDS, "dropout(p=0.1)": [0.91, 0.93, None, None], "blur(sigma_max=0.5)": [None, None, 0.92, 0.95]}
    html = html_of(summarise(read_study(comparison(tmp_path, ends))))
    # Dropout and blur share no seed.
    counts = [part.partition("correction for all ")[2][0] for part in html.split('<div class="option">')[1:]]
    assert counts == ["3", "2", "3", "2"]
    assert "correction counts the differences to one baseline, not those to all that can be chosen." in html


def many(*extra: str) -> dict[str, list[float]]:
    """More methods than a page offers; the last is the best."""
    names = ["none", "dropkey(p=0.1)", *(f"hard(p=0.1,k={k})" for k in range(1, MOST)), *extra, "blur(sigma_max=0.5)"]
    return {name: [0.8 + 0.001 * place, 0.81 + 0.001 * place] for place, name in enumerate(names)}


def test_of_many_methods_the_controls_and_the_best_are_offered(comparison: Maker, tmp_path: Path) -> None:
    controls = ["longer(lr=1.0,decay=1.0,times=2)", "dropout(p=0.1)", "r-drop(weight=1.0,p=0.1)"]
    methods = many(*controls, "dropout(p=0.1)+hard(p=0.1,k=5)")
    summary = summarise(read_study(comparison(tmp_path, methods, measured=False)))
    html = html_of(summary)
    assert [each["value"] for each in radios(Page(html))] == ["none", *controls, "blur(sigma_max=0.5)"]
    words = f"Of the {len(methods)} methods, the controls and the best one can be chosen here; for any other, write the"
    assert f"{words} report again with <code>--baseline METHOD</code>." in html
    # The number of methods decides, not the number of controls.
    fewer = dataclasses.replace(summary, rows=summary.rows[:MOST])
    assert len(offered(fewer)) == MOST
    assert [row.label for row in offered(dataclasses.replace(summary, rows=summary.rows[: MOST + 1]))] == [
        "none",
        summary.rows[MOST].label,
    ]
    # Where lower is better, the best is the lowest.
    losses = Metrics((CLASS_METRICS.named("nll"), CLASS_METRICS.primary))
    assert offered(dataclasses.replace(summary, metrics=losses))[-1].label == "blur(sigma_max=0.5)"


def test_however_many_controls_there_are_the_page_stays_small(comparison: Maker, tmp_path: Path) -> None:
    methods = many(*(f"dropout(p=0.{rate})" for rate in range(10, 10 + MOST)))
    found = offered(summarise(read_study(comparison(tmp_path, methods, measured=False)), baseline="dropkey"))
    labels = [row.label for row in found]
    assert len(labels) == MOST and labels[:3] == ["dropkey(p=0.1)", "none", "dropout(p=0.10)"]
    assert labels[-1] == "blur(sigma_max=0.5)"
