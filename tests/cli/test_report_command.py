"""`attentiondrop report`: what it prints, writes and refuses."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from attentiondrop.cli import report
from attentiondrop.errors import AttentionDropError
from attentiondrop.experiments.studies.plan import Comparison, Entry, write_study


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    report.add_parser(parser.add_subparsers())
    return report.run(parser.parse_args(["report", *words]))


def test_it_prints_the_three_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(tmp_path, Comparison("attentiondrop compare", {}, [0], 0, [Entry("none", "none", [])]))
    assert run(str(tmp_path)) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"report: {tmp_path / 'report.html'}",
        f"tables: {tmp_path / 'report.md'}",
        f"runs:   {tmp_path / 'results.csv'}",
    ]
    assert all((tmp_path / name).stat().st_size for name in ("report.html", "report.md", "results.csv"))


def test_it_prints_which_runs_were_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "attentiondrop.experiments.analysis.remarks.origin_remarks", lambda summary: ["Left out: 2 runs"]
    )
    write_study(tmp_path, Comparison("attentiondrop compare", {}, [0], 0, [Entry("none", "none", [])]))
    assert run(str(tmp_path)) == 0
    assert capsys.readouterr().out.startswith("Left out: 2 runs\nreport: ")


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_a_folder_without_a_study_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(AttentionDropError, match="expected the folder of `attentiondrop compare` or `ablate`"):
        run(str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_study_is_named(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(AttentionDropError, match=r"comparison\.json cannot be read"):
        run(str(tmp_path))


def test_intervals_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(tmp_path, Comparison("attentiondrop compare", {}, [0], 0, [Entry("none", "none", [])]))
    assert run(str(tmp_path), "--interval", "bootstrap") == 0
    with pytest.raises(SystemExit):
        run(str(tmp_path), "--interval", "guess")
    assert "invalid choice: 'guess'" in capsys.readouterr().err
