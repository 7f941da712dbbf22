"""`--minutes`: a study that has no time for all of its runs shows what it has, and says that runs are left."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from attentiondrop.cli.main import main
from attentiondrop.cli.time_limit import RUNS_LEFT, report_in_time, until
from attentiondrop.experiments.runs import deadline

TINY = [
    "data.limit=48",
    "model.arguments={depth: 2, embed_dim: 16, num_heads: 2}",
    "training.epochs=1",
    "training.device=cpu",
    "measure.probes=0",
]


@pytest.fixture
def two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is time for two more runs."""
    clock = iter([0.0, 0.0, *[math.inf] * 20])
    monkeypatch.setattr(deadline, "time", SimpleNamespace(time=lambda: next(clock)))


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "digits", "--methods", "none", "dropout(p=0.1)", "--trials", "0"],
        ["ablate", "digits", "--method", "hard", "--vary", "p=0.1"],
    ],
    ids=["compare", "ablate"],
)
def test_what_is_there_is_shown_and_the_same_command_goes_on(
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    two_runs: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [*command, "--seeds", "2", "--size", "demo", "--out", str(tmp_path), "--workers", "1", "--minutes", "5"]
    words += ["--set", *TINY]
    assert main(words) == RUNS_LEFT == 3
    said = capsys.readouterr().out
    assert "the time is over, 2 of 4 runs are left: run the same command to go on" in said
    assert "unfinished" in said and "1 of 2" in said
    assert (tmp_path / "report.html").exists()
    monkeypatch.undo()
    assert main(words) == 0
    assert "are left" not in capsys.readouterr().out


def test_minutes_are_counted_from_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert until(argparse.Namespace(minutes=2.5, ray=None)) == 1150.0
    assert until(argparse.Namespace(minutes=None, ray="auto")) == math.inf


@pytest.mark.parametrize(("shown", "code"), [(0, 3), (2, 3)])
def test_failed_runs_do_not_hide_that_others_are_left(shown: int, code: int, tmp_path: Path) -> None:
    from attentiondrop.experiments.runs.pool import OutOfTimeError

    def study() -> None:
        raise OutOfTimeError("the time is over")

    assert report_in_time(study, lambda out: shown, tmp_path) == code
    assert report_in_time(lambda: None, lambda out: shown, tmp_path) == shown


@pytest.mark.parametrize("given", ["0", "-1", "inf", "nan", "soon"])
def test_wrong_minutes_are_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", f"--minutes={given}"])
    assert f"argument --minutes: expected a number above 0, received '{given}'" in capsys.readouterr().err


def test_a_cluster_has_no_limit() -> None:
    with pytest.raises(
        ValueError, match="minutes: expected no limit with --ray, which takes all runs at once, received"
    ):
        until(argparse.Namespace(minutes=5.0, ray="auto"))
