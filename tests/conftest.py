"""Shared set-up: every test starts from the same seeds, and from a library that has not warned yet."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attentiondrop.errors import forget_warnings


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    forget_warnings()
    try:
        import torch
    except ImportError:
        return
    torch.manual_seed(0)
    # On ARM, where a matrix product of oneDNN fails, torch switches oneDNN off for the rest of the process. Then a test
    # would compute other last bits than a process that it starts.
    if not torch.backends.mkldnn.enabled:
        torch.backends.mkldnn.set_flags(True)


@pytest.fixture
def docs_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a program of docs or docs/evidence. Afterwards all of them are forgotten: tests change their constants."""
    folders = [Path(__file__).parents[1] / "docs" / name for name in ("evidence", ".")]
    monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])
    yield importlib.import_module
    for folder in folders:
        for file in folder.glob("*.py"):
            sys.modules.pop(file.stem, None)
