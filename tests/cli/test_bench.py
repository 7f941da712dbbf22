"""`attentiondrop bench`: what a person types, reads and gets back."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import attentiondrop
from attentiondrop.cli.main import main

TINY = ["--repeats", "2", "--seconds", "0.1", "--device", "cpu"]


def fresh(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(attentiondrop.__file__).parents[1])}
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, env=environment)


HELP = """
import sys
from attentiondrop.cli.main import main
for words in (["bench"], ["bench", "attention"], ["bench", "length"], ["bench", "vit"], ["bench", "plot"]):
    try:
        main([*words, "--help"])
    except SystemExit as stop:
        assert stop.code == 0
print(sorted({"torch", "timm", "rich", "matplotlib"} & set(sys.modules)), file=sys.stderr)
"""


def test_help_loads_no_framework() -> None:
    done = fresh(HELP)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert "--shape" in done.stdout and "--modes" in done.stdout


def test_attention_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["SDPA", "SDPA cudnn", "SDPA dropout 0.1", "blur*"]
    shapes = ["1,2,16,8", "1,2,8,8,causal,1"]
    assert main(["bench", "attention", *TINY, "--out", str(tmp_path), "--rows", *rows, "--shape", *shapes]) == 0
    text = capsys.readouterr()
    assert "1x2x16x8" in text.out and "blur(sigma_max=0.5)" in text.out and "fwd+bwd ms" in text.out
    assert "SDPA cudnn: cannot run: " in text.out
    assert "1x2x8x8 causal, 1 key heads: 3 of 4 rows timed" in text.err
    assert "\x1b" not in text.out + text.err
    (table,), (page,) = tmp_path.glob("attention-*.csv"), tmp_path.glob("attention-*.md")
    assert len(list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))) == 8
    command = "attentiondrop bench attention --shape 1,2,16,8 1,2,8,8,causal,1 --rows SDPA 'SDPA cudnn'"
    assert command in page.read_text(encoding="utf-8")
    assert str(tmp_path) not in page.read_text(encoding="utf-8")


def test_a_failed_check_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from attentiondrop.bench.rows import OursRow

    right = OursRow.build
    monkeypatch.setattr(OursRow, "build", lambda *args: lambda q, k, v: 2 * right(*args)(q, k, v))
    arguments = ["--rows", "SDPA", "noise*", "--shape", "1,2,16,8", "--out", str(tmp_path)]
    assert main(["bench", "attention", *TINY, *arguments]) == 1
    text = capsys.readouterr()
    assert "noise(sigma=0.1): FAILED CHECK: relative error 1, allowed 0.0001" in text.err
    assert "FAILED CHECK" in text.out


def test_length_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["--rows", "SDPA", "drophead*", "--shape", "1,1,8,4", "--longest", "16", "--out", str(tmp_path)]
    assert main(["bench", "length", *TINY, *arguments]) == 0
    pictures, said = list(tmp_path.glob("*.png")), capsys.readouterr().out
    assert {picture.stem.rpartition("-")[2] for picture in pictures} == {"time", "ratio"}
    assert all(f"picture: {picture}" in said and picture.stat().st_size > 10_000 for picture in pictures)

    monkeypatch.setattr("attentiondrop.cli.extras.is_installed", lambda module: module != "matplotlib")
    assert main(["bench", "length", *TINY, *arguments]) == 0
    (table,) = tmp_path.glob("*.csv")
    assert f"attentiondrop bench plot {table}" in capsys.readouterr().out
    assert main(["bench", "plot", str(table)]) == 2
    error = capsys.readouterr().err
    assert error == 'attentiondrop bench needs matplotlib; install it with: pip install "attentiondrop[experiments]"\n'


def test_plot_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["bench", "plot", str(tmp_path / "none.csv")]) == 2
    assert capsys.readouterr().err == f"attentiondrop bench: {tmp_path / 'none.csv'}: No such file or directory\n"


def test_vit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("timm")
    arguments = ["--model", "test_vit", "--batch", "2", "--rows", "SDPA", "dropkey*", "--out", str(tmp_path)]
    assert main(["bench", "vit", *TINY, *arguments]) == 0
    text = capsys.readouterr()
    assert "test_vit, batch 2, float32, eager" in text.out and "SDPA, again" in text.out
    assert "eager: dropkey(p=0.1): " in text.err


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["attention", "--rows", "hrad"], "rows: expected shell patterns that match some of: SDPA, "),
        (["attention", "--shape", "1,2,3"], "shape: expected B,H,N,D, "),
        (["length", "--shape", "1,1,8,8", "--longest", "9"], "longest: expected at least twice the shortest length"),
        (["vit", "--model", "nonsense"], "model: expected the name of a timm model"),
    ],
)
def test_a_wrong_argument_is_one_line(
    args: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *args, *TINY, "--out", str(tmp_path)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"attentiondrop bench: {line}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("args", [["--repeats", "0"], ["--seconds", "0"], ["--seconds", "x"], ["--seconds", "inf"]])
def test_numbers_are_positive(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "attention", *args])
    assert stop.value.code == 2
    assert "expected" in capsys.readouterr().err


def test_traceback_on_request(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "attention", "--shape", "1", "--traceback", "--out", str(tmp_path)]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interruption_says_what_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attentiondrop.bench.attention.run_attention", interrupted)
    assert main(["bench", "attention", *TINY, "--out", str(tmp_path)]) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"attentiondrop bench: interrupted; {tmp_path} keeps what was measured"


def test_without_a_kind_it_lists_them(capsys) -> None:
    assert main(["bench"]) == 2
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in ("attention", "length", "vit", "plot"))
