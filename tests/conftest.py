"""Shared set-up: every test starts from the same seeds, and from a library that has not warned yet."""

from __future__ import annotations

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
