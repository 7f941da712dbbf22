"""A comparison small enough to train in a second."""

from __future__ import annotations

import pytest

from attentiondrop.experiments.recipe import Recipe


class Silent:
    """A listener that remembers what it heard."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.planned: int | None = None
        self.done: list[int] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def plan(self, epochs: int) -> None:
        self.planned = epochs

    def progress(self, label: str, epochs: int) -> None:
        self.done.append(epochs)


@pytest.fixture
def listener() -> Silent:
    return Silent()


@pytest.fixture
def tiny() -> Recipe:
    return Recipe(epochs=1, batch_size=16, samples=48)
