"""Progress without a terminal: lines, but not too many, and how long the rest takes."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from attentiondrop.cli import progress


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def lines(unit: str | None) -> tuple[progress.ProgressLines, io.StringIO]:
    file = io.StringIO()
    return progress.ProgressLines(unit, Console(file=file, highlight=False)), file


def test_a_line_per_epoch_if_there_are_few(at: list[float]) -> None:
    found, file = lines("epochs")
    with found as shown:
        shown.plan(4)
        for time, done in ((10.0, 0), (70.0, 1), (75.0, 1), (80.0, 2), (90.0, 4)):
            at[0] = time
            shown.progress("none, seed 0", done)
        shown.say("none, seed 0: done")
        shown.plan(0)
    assert file.getvalue().splitlines() == [
        "4 epochs to do",
        "1/4 epochs after 0:01:10: none, seed 0",  # loading took most of it, so nothing is said about the rest
        "2/4 epochs after 0:01:20, 0:00:20 left: none, seed 0",
        "4/4 epochs after 0:01:30, 0:00:00 left: none, seed 0",
        "none, seed 0: done",
        "nothing left to run",
    ]


def test_many_epochs_do_not_fill_a_log(at: list[float]) -> None:
    found, file = lines("epochs")
    found.plan(250)
    for done in range(251):
        at[0] += 1
        found.progress("none, seed 0", done)
    shown = file.getvalue().splitlines()[1:]
    assert [line.partition("/")[0] for line in shown] == ["1", *(str(round(12.5 * n + 0.01)) for n in range(1, 21))]
    assert shown[-1].startswith("250/250 epochs after 0:04:11, 0:00:00 left")


def test_a_slow_study_is_not_silent_for_long(at: list[float]) -> None:
    found, file = lines("epochs")
    found.plan(1000)
    for done in range(1, 6):
        at[0] += 400
        found.progress("none, seed 0", done)
    assert [line.partition("/")[0] for line in file.getvalue().splitlines()[1:]] == ["1", "3", "5"]


def test_a_line_for_every_tenth_without_a_unit(at: list[float]) -> None:
    found, file = lines(None)
    found.progress("before the plan", 0.5)
    found.plan(2)
    for done in (0.0, 0.1, 0.25, 0.3, 2.0):
        found.progress("attacking", done)
    assert file.getvalue().splitlines() == ["10 % after 0:00:00: attacking", "100 % after 0:00:00: attacking"]


@pytest.mark.parametrize(("terminal", "kind"), [(True, progress.ProgressBar), (False, progress.ProgressLines)])
def test_a_terminal_gets_a_bar(terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "Console", lambda **given: Console(**given, force_terminal=terminal))
    assert type(progress.show_progress("epochs")) is kind


def test_progress_is_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output has only results."""
    with progress.show_progress("epochs") as shown:
        shown.plan(2)
        shown.progress("none, seed 0", 2)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("2 epochs to do\n2/2 epochs after ")


@pytest.mark.parametrize(
    "unit, parts, missing", [("epochs", ("2/4 epochs ", " left "), "50%"), (None, ("50%",), "left")]
)
def test_a_terminal_has_a_bar(unit: str | None, parts: tuple[str, ...], missing: str) -> None:
    file = io.StringIO()
    with progress.ProgressBar(unit, Console(file=file, force_terminal=True, width=100)) as bar:
        bar.plan(4)
        bar.progress("noise(sigma=[red]), seed 0", 2)
        bar.say("a line with [red] brackets")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "loading torch" in text and "a line with [red] brackets" in text
    last = text.rstrip().splitlines()[-1]
    assert last.startswith("noise(sigma=[red]), seed 0") and all(part in last for part in parts) and missing not in last
