"""What a result says about the machine, and the pictures of it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from attentiondrop import AttentionDropError
from attentiondrop.bench import environment as environment_module
from attentiondrop.bench.environment import Environment, source_commit
from attentiondrop.bench.environment import environment as look
from attentiondrop.bench.plot import draw
from attentiondrop.bench.records import SKIPPED, TIMED, AttentionOutcome, digits, ratio
from attentiondrop.bench.report import Report
from attentiondrop.errors import ArgumentError


def outcome(
    row: str, kind: str, length: int, milliseconds: float, mib: float | None, **others: object
) -> AttentionOutcome:
    values = {"step_ms": milliseconds, "step_ms_20": 0.9 * milliseconds, "step_ms_80": 1.1 * milliseconds}
    shape = {"batch": 4, "heads": 16, "key_heads": 16, "size": 64, "dtype": "bfloat16", "length": length}
    return AttentionOutcome(row=row, kind=kind, status=TIMED, extra_mib=mib, **{**values, **shape, **others})


def test_pictures_of_time_and_memory(make_report: Callable[[], Report]) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    report = make_report()
    for length in (1024, 256, 512):
        rows = [
            outcome("SDPA", "plain", length, 1e-5 * length**2, 0.1 * length),
            outcome("paper's blur", "paper", length, 1e-3 * length**2, 1e-3 * length**2),
            outcome("hard(p=0.1,k=5)", "ours", length, 2e-5 * length**2, 0.1 * length),
            outcome("new", "some other kind", length, 1e-4 * length**2, None),
        ]
        report.add(str(length), [*rows, AttentionOutcome("SDPA math", "plain", SKIPPED, length=length)])
    pictures = draw(report.csv)
    assert [picture.name for picture in pictures] == ["name-time.png", "name-memory.png"]
    for picture in pictures:
        pixels = imread(picture)
        assert pixels.shape[0] > 500 and pixels.shape[1] > 900
        assert pixels[..., :3].std() > 0.05  # not blank
    assert imread(pictures[0]).shape != () and (imread(pictures[0]) != imread(pictures[1])).any()


def test_a_picture_of_ratios_shows_numbers_on_its_axis(make_report: Callable[[], Report], monkeypatch) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    report = make_report()
    for length in (16, 32):
        ratios = {"plain_ratio_20": 0.7, "plain_ratio": 0.8, "plain_ratio_80": 2.4}
        report.add(str(length), [outcome("hard(p=0.1,k=5)", "ours", length, 1.0, None, **ratios)])
    shown: dict[str, list[str]] = {}
    save = figure.Figure.savefig

    def saved(self, path) -> None:
        save(self, path)
        axis = self.axes[0].yaxis
        low, high = self.axes[0].get_ylim()
        shown[path.name] = [
            label.get_text() for label in axis.get_ticklabels() if low <= label.get_position()[1] <= high
        ]

    monkeypatch.setattr(figure.Figure, "savefig", saved)
    assert [picture.name for picture in draw(report.csv)] == ["name-time.png", "name-ratio.png"]
    assert shown["name-ratio.png"] == ["0.7", "1", "1.5", "2"]


def test_one_picture_for_each_shape_and_none_of_memory_on_a_cpu(make_report: Callable[[], Report]) -> None:
    pytest.importorskip("matplotlib")
    report = make_report()
    rows = [outcome("SDPA", "plain", length, 1.0, None, size=size) for length in (8, 16) for size in (32, 64)]
    report.add("all", [*rows, outcome("SDPA", "plain", 8, 1.0, None, size=128, causal=True)])
    assert [picture.name for picture in draw(report.csv)] == ["name-time1.png", "name-time2.png"]


def test_files_without_a_curve(tmp_path: Path, make_report: Callable[[], Report]) -> None:
    report = make_report()
    report.add("one", [outcome("SDPA", "plain", 8, 1.0, None)])
    with pytest.raises(
        ArgumentError, match=r"csv: expected timings of one shape at two lengths or more, received 'name.csv'"
    ):
        draw(report.csv)
    (tmp_path / "other.csv").write_text("row,kind\nSDPA,plain\n")
    with pytest.raises(ArgumentError, match=r"with columns extra_mib, length, status, step_ms, received 'other.csv'"):
        draw(tmp_path / "other.csv")


def test_slug_and_numbers(environment: Environment) -> None:
    assert environment.slug == "h200-torch2.11"
    cpu = dataclasses.replace(environment, device="x86_64 CPU, 8 cores, 4 threads", torch="2.15.0")
    assert cpu.slug == "x86-64-cpu-torch2.15"
    assert [digits(value) for value in (None, 0.01234, 1.234, 12.34, 1234.5)] == ["-", "0.012", "1.23", "12.3", "1234"]
    assert (ratio(None), ratio(1.234), ratio(1.0, 1.1, 1.2)) == ("-", "1.23", "1.10 (1.00 - 1.20)")


def test_this_machine() -> None:
    env = look("cpu", commit="given")
    assert env.commit == "given" and env.driver == "" and "CPU" in env.device
    assert env.date.endswith("UTC")


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr("torch.version.cuda", "13.0")
    # A process asks for the driver once; this test asks twice.
    monkeypatch.setattr(environment_module, "_driver", environment_module._driver.__wrapped__)

    def answer(command: list[str], **kwargs: object) -> subprocess.CompletedProcess[str]:
        assert "--query-gpu=driver_version" in command
        return subprocess.CompletedProcess(command, 0, "580.1\n", "")

    monkeypatch.setattr(environment_module.subprocess, "run", answer)
    assert look("cuda", commit="x").driver == "580.1, CUDA 13.0"

    def missing(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(environment_module.subprocess, "run", missing)
    assert look("cuda", commit="x").driver == "CUDA 13.0"
    monkeypatch.setattr(environment_module, "version_of", environment_module.version_of)
    assert environment_module.version_of("no-such-package") == "not installed"


def git(folder: Path, *command: str) -> None:
    name = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *name, *command], cwd=folder, check=True, capture_output=True)


def test_the_commit_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_commit(tmp_path) == "unknown"
    git(tmp_path, "init")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert source_commit(package) == "unknown"  # inside somebody's repository, but not of it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "m")
    clean = source_commit(package)
    assert len(clean) >= 7 and "dirty" not in clean
    # A touched file makes `git status` write the index, with a lock that stops a commit at the same time.
    index = tmp_path / ".git" / "index"
    before = index.read_bytes()
    os.utime(package / "__init__.py", (1, 1))
    assert source_commit(package) == clean and index.read_bytes() == before
    (tmp_path / "result.csv").write_text("")
    assert source_commit(package) == clean
    (package / "__init__.py").write_text("1")
    assert source_commit(package) == f"{clean}+dirty"
    monkeypatch.setattr(environment_module.shutil, "which", lambda name: None)
    assert source_commit(package) == "unknown"


@pytest.mark.parametrize(
    "content",
    [
        b"row,kind,status,length,step_ms,extra_mib\na,ours,timed,128,1.5,2\nb,ours,timed,25",
        b"row,kind,status,length,step_ms,extra_mib\na,ours,timed,128,fast,2\n",
        b"row,kind,status,length,step_ms,extra_mib\na,ours,timed,128,nan,2\n",
        b"row,kind,status,length,step_ms,extra_mib\na,ours,timed,128,1,2,3,4\n",
        b"row,kind,status,length,step_ms,extra_mib\n\xff\xfe\n",
    ],
)
def test_a_file_that_was_cut_off_or_changed_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "timings.csv"
    path.write_bytes(content)
    with pytest.raises(AttentionDropError, match=r"timings\.csv: line \d cannot be read"):
        draw(path)
