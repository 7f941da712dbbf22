"""The claims of the paper that no results.csv decides: verdicts follow the committed files, also if these change."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs" / "evidence"
ATTACKS, COMPILED, EAGER = "weak-attacks-h200-torch2.11.csv", "vit-h200-torch2.11.csv", "vit-h200-torch2.11-eager.csv"
CAPTURED = "methods-h200-torch2.11.csv"


@pytest.fixture
def others(docs_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, with copies of the files that it reads, and no published studies."""
    found = docs_module("other_claims")
    (tmp_path / "benchmarks").mkdir()
    for name in (ATTACKS, ATTACKS.replace(".csv", ".md"), COMPILED, EAGER, CAPTURED):
        shutil.copy(found.BENCHMARKS / name, tmp_path / "benchmarks")
    shutil.copy(found.ATTACKED, tmp_path)
    monkeypatch.setattr(found, "BENCHMARKS", tmp_path / "benchmarks")
    monkeypatch.setattr(found, "ATTACKED", tmp_path / "results.csv")
    monkeypatch.setattr(found, "RESULTS", tmp_path / "results")
    return found


def test_the_variance_of_gradients_is_judged_by_runs_of_study_1(others: Any) -> None:
    assert others.gradient_variance().verdict == "not measured"
    file = others.RESULTS / others.VARIANCE
    file.parent.mkdir(parents=True)
    lines = ["method,seed,epoch,base,perturbed"]
    for seed, (hard, blur) in enumerate([(1.2, 0.90), (1.3, 0.91), (1.25, 0.89)]):
        lines += [f'"hard(p=0.2,k=5)",{seed},100,2.0,{2 * hard}', f"blur(sigma_max=0.5),{seed},100,4.0,{4 * blur}"]
        lines.append(f"blur(sigma_max=0.5),{seed},50,1.0,9.0")  # only the last weights count
    file.write_text("\n".join(lines), encoding="utf-8")
    judged = others.gradient_variance()
    assert judged.verdict == "reproduced in part"
    assert "`hard(p=0.2,k=5)` +25.0 % [" in judged.found and "`blur(sigma_max=0.5)` -10.0 % [" in judged.found
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("3.64", "4.2"), encoding="utf-8")  # lower in the mean, but not certainly
    assert others.gradient_variance().verdict == "not reproduced"


def change(file: Path, edit: Callable[[list[dict[str, str]]], None]) -> None:
    """Edit the rows of a table."""
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    edit(rows)
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def put(file: Path, column: str, value: str, **where: str) -> None:
    """Set one column in the rows that match."""

    def edit(rows: list[dict[str, str]]) -> None:
        chosen = [row for row in rows if all(row[name] == wanted for name, wanted in where.items())]
        assert chosen
        for row in chosen:
            row[column] = value

    change(file, edit)


def test_every_claim_of_the_protocol_is_on_the_page() -> None:
    claims = re.findall(r"^\| (P\d+) \|", (EVIDENCE / "protocol.md").read_text(encoding="utf-8"), re.MULTILINE)
    page = (EVIDENCE / "claims.md").read_text(encoding="utf-8")
    shown = {name for cell in re.findall(r"^\| (P[^|]*) \|", page, re.MULTILINE) for name in cell.split(", ")}
    assert len(claims) == 21 and shown == set(claims)


def test_all_of_them_are_listed_in_order_with_the_words_of_the_protocol(
    others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {name: others.Judged("reproduced", "", "") for name in ("P12", "P13")}
    elsewhere |= {name: others.Judged("not measured", "", "") for name in ("P6", "P10", "P21")}
    judged = others.judge([("P1", "reproduced"), ("P7", "not reproduced")], elsewhere)
    assert list(judged) == ["P6", *(f"P{number}" for number in range(8, 22))]
    rows = others.rows(judged)
    assert rows[6][:3] == ["P13", "Training loss is lower with blur + consistency", "reproduced"]
    assert judged["P9"].found.endswith("Not reproduced: P7, P8")
    monkeypatch.setattr(others, "attacks", lambda: others.Judged("reproduced", "", ""))
    assert others.judge([], elsewhere)["P9"].found.endswith("Open: P6")
    assert {judged[name].verdict for name in ("P17", "P19")} == {"not reproduced"}
    assert judged["P20"].verdict == "not testable here"
    assert {judged[name].verdict for name in ("P6", "P10", "P11", "P21")} == {"not measured"}
    assert (judged["P15"].verdict, judged["P16"].verdict) == ("reproduced", "not reproduced")
    assert {each.verdict for each in judged.values()} <= set(others.verdicts.ALL)


def test_the_summary_counts(others: Any) -> None:
    words = ["reproduced", "reproduced", "reproduced in part", "not measured", "not testable here"]
    judged = {f"P{number}": others.Judged(each, "", "") for number, each in enumerate(words)}
    assert others.counted(judged) == (
        "The 5 other claims of the paper: 2 reproduced, 1 reproduced in part, 1 not measured, 1 not testable here."
    )


def test_a_study_is_complete_when_all_runs_have_ended(others: Any) -> None:
    folder = others.RESULTS / "one"
    assert not others.complete(folder)
    folder.mkdir(parents=True)
    for status in ("missing", "of another recipe", "damaged", "failed", "diverged"):
        (folder / "results.csv").write_text(f"method,status\nnone,finished\nhard,{status}\n")
        assert others.complete(folder) is (status in ("failed", "diverged"))
    assert others.not_measured(["one", "two"]).found.endswith("`one`, `two`")


def test_a_method_that_was_stopped_does_not_keep_a_study_from_being_complete(others: Any) -> None:
    folder = others.RESULTS / "multi30k-en-de"
    folder.mkdir(parents=True)
    lines = ["method,status", "none,finished", '"dropout(p=0.1)",finished', '"dropout(p=0.1)",missing']
    (folder / "results.csv").write_text("\n".join(lines))
    assert others.complete(folder)
    (folder / "results.csv").write_text("\n".join([*lines, "none,missing"]))
    assert not others.complete(folder)
    folder.rename(others.RESULTS / "another")  # the same method there was not stopped
    (others.RESULTS / "another" / "results.csv").write_text("\n".join(lines))
    assert not others.complete(others.RESULTS / "another")


@pytest.mark.parametrize(
    ("words", "verdict", "named"),
    [
        (("reproduced", "not reproduced", "not measured"), "not reproduced", "P2"),
        (("reproduced", "not resolved", "not measured"), "not measured", "P2, P3"),
        (("reproduced", "reproduced", "reproduced"), "reproduced", "P1 to P8 are reproduced"),
    ],
)
def test_consistent_gains_need_all_the_others(others: Any, words: tuple[str, ...], verdict: str, named: str) -> None:
    found = others.consistent_gains([("P1", words[0]), ("P2", words[1]), ("P3", words[2]), ("P2", words[1])])
    assert found.verdict == verdict and found.found.endswith(named)


def test_attacks(others: Any) -> None:
    weak, checked = others.BENCHMARKS / ATTACKS, others.ATTACKED
    found = others.attacks()
    assert found.verdict == "not reproduced"
    assert found.found.startswith("At most 0.0 % under 20 steps (soundness checks passed: 8 of 8 runs")
    assert found.found.endswith(
        "at most 0.0 % in the table of weak attacks (4 runs). 45.7 % are left at an epsilon of 0.55 to 0.77/255"
    )
    # Another attack does not count, and a model that withstands an attack without checks proves nothing.
    put(weak, "accuracy", "0.4", attack="one step of 8/255")
    assert others.attacks().verdict == "not reproduced"
    put(weak, "accuracy", "0.2", attack="PGD at 8/255, 20 steps", run="none, seed 108")
    assert others.attacks().verdict == "not resolved" and "at most 20.0 %" in others.attacks().found
    put(checked, "accuracy_linf_8/255", "0.06", method="none", seed="108", part="runs")
    assert others.attacks().verdict == "reproduced" and "At most 6.0 %" in others.attacks().found
    put(checked, "attack_sound", "False", method="none", seed="108", part="runs")
    assert others.attacks().verdict == "not resolved" and "7 of 8" in others.attacks().found
    page = weak.with_suffix(".md")
    page.write_text(page.read_text(encoding="utf-8").replace("0.77/255", "0.78/255"), encoding="utf-8")
    assert others.attacks().found.endswith("0.55 to 0.78/255")


def set_costs(others: Any, hard: str, blur: str, views: str) -> Any:
    for file in (COMPILED, EAGER):
        put(others.BENCHMARKS / file, "ratio", hard, row="hard(p=0.1,k=5)")
        put(others.BENCHMARKS / file, "ratio", blur, row="blur(sigma_max=0.5)")
    put(others.BENCHMARKS / CAPTURED, "ratio", views, model="vit-b16", method="blur+consistency")
    return others.costs()


def test_costs(others: Any) -> None:
    """0.97, 0.94 and 0.50 of the throughput are asked for; captured steps have ratios of times."""
    found = set_costs(others, "0.97", "0.94", "2.0")
    assert found.verdict == "reproduced" and "Worse: none." in found.found
    assert "compiled: `hard(p=0.1,k=5)` 0.970, `blur(sigma_max=0.5)` 0.940; eager" in found.found
    assert "`blur+consistency` 0.500" in found.found
    found = set_costs(others, "0.97", "0.939", "2.0")
    assert found.verdict == "reproduced in part"
    assert "Worse: compiled `blur(sigma_max=0.5)`, eager `blur(sigma_max=0.5)`." in found.found
    found = set_costs(others, "0.969", "1.0", "2.0")
    assert "Worse: compiled `hard(p=0.1,k=5)`, eager `hard(p=0.1,k=5)`." in found.found
    assert "Worse: captured, batch 64 `blur+consistency`." in set_costs(others, "1.0", "1.0", "2.01").found
    set_costs(others, "0.5", "0.5", "3.0")
    for method in ("hard", "blur"):
        put(others.BENCHMARKS / CAPTURED, "ratio", "1.5", model="vit-b16", method=method)
    assert others.costs().verdict == "not reproduced" and "`hard(p=0.1,k=5)` 0.667" in others.costs().found
    put(others.BENCHMARKS / COMPILED, "peak_gib", "20", row="SDPA")
    put(others.BENCHMARKS / COMPILED, "peak_gib", "20.25", row="hard(p=0.1,k=5)")
    put(others.BENCHMARKS / COMPILED, "peak_gib", "19.5", row="blur(sigma_max=0.5)")
    assert "compiled +0.25 and -0.50 GiB" in others.costs().found


def test_only_rows_that_were_timed_count(others: Any) -> None:
    before = others.costs()

    def fail_at_last(rows: list[dict[str, str]]) -> None:
        rows += [dict(row, status="failed", ratio="0.1", peak_gib="1") for row in rows]

    change(others.BENCHMARKS / COMPILED, fail_at_last)
    assert others.costs() == before


def test_the_entropy_of_attention_is_judged_by_intervals_over_seeds(
    others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(hard: float, blur: float, noise: float) -> str:
        """The verdict for these mean changes of the entropy. Seeds differ by 0.002, so an interval is +-0.0050."""
        rows = [
            {"spec": spec, "seed": str(seed), "before": "2.0", "after": str(2.0 + change + 0.002 * (seed - 1))}
            for spec, change in ((others.HARD, hard), (others.BLUR, blur), (others.NOISE, noise))
            for seed in range(3)
        ]
        monkeypatch.setattr(others.theory_tables, "rows", lambda table: rows)
        return others.entropy().verdict

    assert measured(0.006, 0.03, -0.01) == "reproduced in part"
    assert "`blur(sigma_max=0.5)` +0.030 ± 0.005" in others.entropy().found
    assert measured(0.006, 0.03, 0.01) == "reproduced"
    assert measured(0.004, 0.004, 0.004) == "not reproduced"


def test_links_of_the_page_lead_to_files_and_headings() -> None:
    links = re.findall(r"\]\(([^)]*)\)", (EVIDENCE / "claims.md").read_text(encoding="utf-8"))
    assert "#p12-convergence" in links and "#p13-training-loss" in links
    for link in links:
        name, _, anchor = link.partition("#")
        page = EVIDENCE / (name or "claims.md")
        headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, link


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["reproduced", "reproduced"], "reproduced"),
        (["not measured", "not measured"], "not measured"),
        (["not reproduced", "reproduced"], "reproduced in part"),
        (["not measured", "reproduced"], "reproduced in part"),
        (["not resolved", "not reproduced"], "not reproduced"),
        (["not reproduced", "not measured"], "not reproduced"),
        (["not resolved", "not measured"], "not resolved"),
    ],
)
def test_the_verdict_of_several_parts(others: Any, parts: list[str], expected: str) -> None:
    assert others.verdicts.together(parts) == expected
