"""Differences after correction, another baseline, GPU time, sizes, and charts with a method that is far off."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.analysis.improvement import improvement
from attentiondrop.experiments.analysis.intervals import Interval, corrected, paired_difference
from attentiondrop.experiments.files.whole_files import DamagedRecordError, write_json
from attentiondrop.experiments.report import write_summary
from attentiondrop.experiments.report.differences import verdict
from attentiondrop.experiments.report.interval_plot import interval_plot, interval_scale
from attentiondrop.experiments.report.scales import Scale, without_far_off
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.runs.store import read_run, write_request, write_result
from attentiondrop.experiments.studies.plan import read_study
from attentiondrop.experiments.studies.step_costs import COSTS, read_costs
from attentiondrop.experiments.tasks.metrics import CLASS_METRICS

from .pages import Maker, Page

ACCURACY = CLASS_METRICS.primary
ENDS = {
    "none": [0.90, 0.91, 0.92, 0.905],
    "dropout(p=0.1)": [0.91, 0.915, 0.935, 0.912],
    "hard(p=0.1,k=5)": [0.95, 0.962, 0.97, 0.953],
    "blur(sigma_max=0.5)": [0.30, 0.35, 0.32, 0.31],
}


def column(page: Page, caption: str, heading: str) -> dict[str, str]:
    rows = next(rows for found, rows in page.tables.items() if found.startswith(caption))
    place = rows[0].index(heading)
    return {row[0]: row[place] for row in rows[1:]}


def page_of(folder: Path, **options: str) -> Page:
    return Page(write_summary(summarise(read_study(folder), **options)).html.read_text(encoding="utf-8"))


def test_corrected_intervals_agree_with_corrected_p_values() -> None:
    """Whatever the p values: the interval excludes zero exactly if the adjusted p value is below 5 %."""
    import numpy as np

    draw = np.random.default_rng(0)
    agreed = set()
    for _ in range(60):
        base = dict(enumerate(draw.normal(size=5)))
        family = [
            paired_difference({key: x + shift + draw.normal() for key, x in base.items()}, base)
            for shift in draw.choice([0.0, 1.0, 3.0, 6.0], size=6)
        ]
        for before, after in zip(family, corrected(family), strict=True):
            assert before is not None and before.interval is not None
            assert after is not None and after.holm_interval is not None and after.holm_p is not None
            assert after.holm_interval.excludes_zero == (after.holm_p < 0.05) == after.marked
            # Never narrower than the plain one.
            assert after.holm_interval.low <= before.interval.low + 1e-12
            agreed.add((before.interval.excludes_zero, after.marked))
    assert agreed == {(False, False), (True, False), (True, True)}


def test_the_first_step_of_the_correction_is_bonferronis() -> None:
    from scipy import stats

    base = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}
    one = paired_difference({0: 1.0, 1: 1.1, 2: 0.9, 3: 1.2}, base)
    other = paired_difference({0: 0.1, 1: -0.3, 2: 0.2, 3: 0.3}, base)
    first, last = corrected([one, other])
    assert one is not None and one.std is not None and first is not None and last is not None
    expected = stats.t.interval(1 - 0.05 / 2, 3, loc=one.mean, scale=one.std / 2)
    assert (first.holm_interval.low, first.holm_interval.high) == pytest.approx(expected)  # type: ignore[union-attr]
    assert last.holm_interval == last.interval  # the last step has the whole five per cent


def test_probability_of_improvement_by_hand() -> None:
    from scipy.stats import binomtest

    found = improvement({0: 3.0, 1: 1.0, 2: 9.0}, {0: 2.0, 1: 2.0, 2: 3.0})
    assert found is not None and found.seeds == 3
    # 3 beats 2, 2 and ties with 3; 1 beats none; 9 beats all.
    assert found.probability == pytest.approx((2.5 + 0 + 3) / 9)
    assert found.interval.low < found.probability < found.interval.high
    assert improvement({0: 1.0}, {1: 1.0}) is None
    all_won = improvement({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, dict.fromkeys(range(4), 0.0))
    expected = binomtest(4, 4).proportion_ci(method="wilson")
    assert all_won is not None
    assert (all_won.interval.low, all_won.interval.high) == pytest.approx((expected.low, expected.high))


def test_differences_are_sorted_with_verdicts(comparison: Maker, tmp_path: Path) -> None:
    page = page_of(comparison(tmp_path, ENDS))
    verdicts = column(page, "Paired differences to none", "Verdict")
    assert list(verdicts) == ["hard(p=0.1,k=5)", "dropout(p=0.1)", "blur(sigma_max=0.5)"]
    assert verdicts["hard(p=0.1,k=5)"] == "better" and verdicts["blur(sigma_max=0.5)"] == "worse"
    chances = column(page, "Paired differences to none", "Better run [95\u00a0%]")
    assert chances["hard(p=0.1,k=5)"] == "1.00 [0.51, 1.00]" and chances["dropout(p=0.1)"].startswith("0.78 [")


def test_no_difference_needs_an_interval_within_the_margin(comparison: Maker, tmp_path: Path) -> None:
    base = [0.9, 0.91, 0.92, 0.93, 0.9]
    near = [x + y for x, y in zip(base, (0.0002, -0.0001, 0.0003, 0.0, 0.0001), strict=True)]
    wide = [x + y for x, y in zip(base, (0.02, -0.03, 0.01, 0.02, -0.01), strict=True)]
    summary = summarise(
        read_study(comparison(tmp_path, {"none": base, "dropout(p=0.1)": near, "hard(p=0.1,k=5)": wide}))
    )
    found = [verdict(row.difference.times(100), ACCURACY) for row in summary.rows[1:]]  # type: ignore[union-attr]
    assert found == ["no difference", "not resolved"]


def test_no_difference_needs_an_interval_that_holds_for_the_whole_family() -> None:
    """Holm's correction does not widen the interval with the largest p value at all."""
    from scipy import stats

    base = dict.fromkeys(range(10), 0.0)
    noise = [0.0043 * x for x in (-1, 1, -1, 1, -1, 1, -1, 1, -1, 1)]
    near = paired_difference(dict(enumerate(noise)), base)
    far = [paired_difference({seed: 0.1 * each + x for seed, x in enumerate(noise)}, base) for each in (1, 2, 3)]
    alone, *_, together = *corrected([near]), *corrected([*far, near])
    assert alone is not None and together is not None and near is not None and near.std is not None
    assert together.holm_interval == alone.holm_interval == near.interval
    low, high = stats.t.interval(1 - 0.05 / 4, 9, scale=near.std / 10**0.5)
    joint = together.times(100).joint_interval
    assert joint is not None and (joint.low, joint.high) == pytest.approx((100 * low, 100 * high))
    plain = near.times(100).interval
    assert plain is not None and plain.within(0.35) and not joint.within(0.35)
    certain = dataclasses.replace(near, p_value=0.0)
    first = corrected([certain, near])[0]  # its p value has no ratio to the corrected one: the first step of Holm
    assert first is not None and first.holm_interval == first.joint_interval != near.interval
    unmeasured = paired_difference({0: 1.0}, {0: 1.0})  # one seed has no p value, and is no comparison
    assert corrected([near, unmeasured, None])[0] == alone
    metric = dataclasses.replace(ACCURACY, margin=0.35)
    assert [verdict(each.times(100), metric) for each in (alone, together)] == ["no difference", "not resolved"]


def test_any_method_can_be_the_baseline(comparison: Maker, tmp_path: Path) -> None:
    folder = comparison(tmp_path, ENDS)
    page = page_of(folder, baseline="hard")
    found = column(page, "Paired differences to hard(p=0.1,k=5)", "Difference, points [95\u00a0%]")
    assert set(found) == {"none", "dropout(p=0.1)", "blur(sigma_max=0.5)"} and found["none"].startswith("\u22125.00")
    assert summarise(read_study(folder), baseline="hard(p=0.1,k=5)").rows[0].label == "hard(p=0.1,k=5)"
    with pytest.raises(
        ArgumentError, match=r"baseline: expected a method of the comparison \(none, dropout, hard, blur\)"
    ):
        summarise(read_study(folder), baseline="dropkey")


def test_a_method_that_is_far_off_leaves_the_others_readable(comparison: Maker, tmp_path: Path) -> None:
    summary = summarise(read_study(comparison(tmp_path, ENDS)))
    found = [row.difference.times(100) for row in summary.rows[1:]]  # type: ignore[union-attr]
    scale = interval_scale(found)
    assert scale is not None and scale.low > -20 and scale.high < 20  # blur is 59 points off
    assert found[2].mean < -50
    drawn = interval_plot(found[2], scale, 0.3)
    assert "<circle" not in drawn and '<path d="M1 11.0l7 -4.5v9z" class="interval marked dot"/>' in drawn
    # A wide interval around a mean within the scale ends at the edge, too.
    wide = dataclasses.replace(found[0], interval=Interval(-80.0, 90.0), holm_interval=None)
    drawn = interval_plot(wide, scale)
    assert 'd="M12.00 11.0H188.00"' in drawn and "<circle" in drawn and drawn.count("v9z") == 2
    assert "<circle" in interval_plot(found[0], scale, 0.3) and "v9z" not in interval_plot(found[0], scale, 0.3)


def test_differences_that_do_not_matter_are_a_grey_area() -> None:
    scale = Scale(-1.0, 1.0)
    assert '<rect x="56" y="0" width="88" height="22" class="margin"/>' in interval_plot(None, scale, 0.5)
    assert "<rect" not in interval_plot(None, scale)


def test_what_counts_as_far_off() -> None:
    assert without_far_off([[1.0], [2.0]]) == [1.0, 2.0]
    assert without_far_off([[0.0, 1.0], [0.5, 1.5], [1.0, 3.0]]) == [0.0, 1.0, 0.5, 1.5, 1.0, 3.0]
    assert without_far_off([[0.0, 1.0], [0.5, 1.5], [100.0, 101.0]]) == [0.0, 1.0, 0.5, 1.5]
    # Not more than a fifth of the groups.
    assert 80.0 in without_far_off([[0.0], [1.0], [2.0], [80.0], [-90.0]])
    assert without_far_off([[0.0], [1.0], [2.0], [40.0], [500.0]]) == [0.0, 1.0, 2.0, 40.0]
    assert without_far_off([[float(near)] for near in range(8)] + [[90.0], [900.0]]) == list(range(8))
    assert without_far_off([[5.0], [5.0], [6.0]]) == [5.0, 5.0, 6.0]


def test_gpu_seconds_come_from_steps_measured_alone(comparison: Maker, tmp_path: Path) -> None:
    folder = comparison(tmp_path, ENDS)
    for method in ENDS:
        for seed in range(4):
            where = run_folder(folder, method, seed)
            run = read_run(where)
            assert run is not None and run.result is not None
            write_request(where, run.request, run.environment | {"runs at once": "8"})
            write_result(
                where,
                type(run.result)(**{**vars(run.result), "steps": 500, "parameters": 1234, "counts": {"train": 99}}),
            )
    assert summarise(read_study(folder)).rows[0].gpu_seconds is None  # they shared the GPU
    write_json(
        folder / COSTS,
        {
            "none": {"seconds": 0.002, "capture": "captured", "device": "NVIDIA H200"},
            "hard(p=0.1,k=5)": {"seconds": 0.004, "capture": "it was not", "device": "NVIDIA H200"},
        },
    )
    page = page_of(folder)
    assert column(page, "GPU seconds of a run", "GPU seconds") == {"none": "1.0", "hard(p=0.1,k=5)": "2.0"}
    assert column(page, "GPU seconds of a run", "to baseline")["hard(p=0.1,k=5)"] == "\u00d7 2.00"
    assert column(page, "Sizes", "Number") == {"train examples": "99", "parameters": "1,234", "training steps": "500"}
    glossary = column(page, "What each part", "From")
    assert list(glossary) == ["none", "dropout", "hard", "blur"] and "Srivastava" in glossary["dropout"]
    assert any(label.startswith("Test accuracy against GPU seconds: none 90.88 in 1.0 s") for label in page.labels)
    for device, heading in (
        ("x86_64 CPU, 2 cores", "Score against training time"),
        ("NVIDIA H200", "against GPU time"),
    ):
        costs = {method: {"seconds": 0.002, "capture": "no", "device": device} for method in ENDS}
        write_json(folder / COSTS, costs)
        page_of(folder)
        assert heading in (folder / "report.html").read_text(encoding="utf-8")
    assert "measured in the run itself" not in (folder / "report.html").read_text(encoding="utf-8")
    assert "different devices" not in (folder / "report.html").read_text(encoding="utf-8")
    write_json(folder / COSTS, costs | {"none": {"seconds": 0.002, "capture": "no", "device": "NVIDIA A100"}})
    page_of(folder)
    words = "Steps were measured on different devices (NVIDIA A100, NVIDIA H200): do not compare their times."
    assert words in (folder / "report.html").read_text(encoding="utf-8")
    table = (folder / "results.csv").read_text(encoding="utf-8").splitlines()
    names = table[0].split(",")
    assert table[1].split(",")[names.index("gpu_seconds")] == "1.0"


def test_only_finished_runs_have_gpu_seconds_and_older_ones_have_no_steps(comparison: Maker, tmp_path: Path) -> None:
    folder = comparison(tmp_path, {"none": [0.90, 0.91, 0.92], "hard(p=0.1,k=5)": [0.95, "diverged", 0.97]})
    cost = {"seconds": 0.002, "capture": "captured", "device": "NVIDIA H200"}
    write_json(folder / COSTS, {"none": cost, "hard(p=0.1,k=5)": cost})
    for seed in range(3):
        run = read_run(where := run_folder(folder, "hard(p=0.1,k=5)", seed))
        assert run is not None and run.result is not None
        write_result(where, dataclasses.replace(run.result, steps=500, throughput=7.0))
    none, hard = (row.gpu_seconds for row in summarise(read_study(folder)).rows)
    assert hard is not None and (hard.count, hard.mean) == (2, 1.0)
    # Twelve epochs of 1400 samples, at 900, 910 and 920 samples a second.
    assert none is not None and none.mean == pytest.approx(sum(16800 / (900 + 10 * seed) for seed in range(3)) / 3)


def test_a_run_that_was_alone_counts_with_its_own_throughput(comparison: Maker, tmp_path: Path) -> None:
    summary = summarise(read_study(comparison(tmp_path, ENDS)))
    on_gpu = comparison(tmp_path / "gpu", ENDS)
    for path in on_gpu.rglob("run.json"):
        path.write_text(path.read_text().replace("aarch64 CPU, 2 cores, 2 threads", "NVIDIA H200"))
    page_of(on_gpu)
    assert "divided by its throughput. These runs did not share" in (on_gpu / "report.md").read_text(encoding="utf-8")
    found = []
    for each in summary.rows[0].outcomes:
        assert each.run is not None and each.run.result is not None and each.run.result.throughput is not None
        found.append(sum(epoch.samples for epoch in each.run.epochs) / each.run.result.throughput)
    assert summary.rows[0].gpu_seconds is not None
    assert summary.rows[0].gpu_seconds.mean == pytest.approx(sum(found) / 4)
    # An epoch that was recorded twice, as older versions did after a crash, counts once.
    lines = run_folder(tmp_path, "none", 0) / "metrics.jsonl"
    lines.write_text(lines.read_text() + lines.read_text().splitlines(keepends=True)[-1])
    again = summarise(read_study(tmp_path)).rows[0].gpu_seconds
    assert again is not None and again.mean == pytest.approx(sum(found) / 4)


def test_costs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert read_costs(tmp_path) == {}
    write_json(tmp_path / COSTS, {"none": {"seconds": "fast"}})
    with pytest.raises(DamagedRecordError, match=r"costs\.json"):
        read_costs(tmp_path)
