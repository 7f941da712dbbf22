"""A run small enough for a test, and a listener that remembers what it heard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attentiondrop.bench.attention import Settings
from attentiondrop.bench.environment import Environment
from attentiondrop.bench.report import Report


class Silent:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.planned = 0
        self.done: list[float] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def plan(self, total: int) -> None:
        self.planned = total

    def progress(self, label: str, done: float) -> None:
        self.done.append(done)


@pytest.fixture
def listener() -> Silent:
    return Silent()


@pytest.fixture
def settings() -> Settings:
    return Settings("cpu", "float32", repeats=3, seconds=0.1)


@pytest.fixture
def environment() -> Environment:
    return Environment(
        device="NVIDIA H200",
        driver="580.1, CUDA 13.0",
        torch="2.11.0+cu130",
        triton="3.6.0",
        timm="1.0.30",
        attentiondrop="0.1.0",
        python="3.12.3",
        commit="abc1234",
        date="2026-11-15 05:00 UTC",
    )


@pytest.fixture
def make_report(tmp_path: Path, environment: Environment) -> Callable[[], Report]:
    return lambda: Report(tmp_path, "name", "Title", "attentiondrop bench attention", ["How to read."], environment)
