"""Rows of training steps: the memory that a row holds."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from attentiondrop.bench import step_rows


@pytest.mark.parametrize(("after", "memory"), [(700.0, 200.0), (400.0, None)])
def test_memory_that_others_gave_back_is_not_that_of_a_row(monkeypatch, after: float, memory: float | None) -> None:
    """What is held before a row, after its first steps (not used), and after more of them."""
    held = iter([500.0, 600.0, after])
    monkeypatch.setattr(step_rows, "_held", lambda device, empty=True: next(held))
    row = step_rows.StepRow("a", "none", lambda: lambda steps: None, (), 1.0)
    step_rows._prepare(row, "cuda")
    assert row.memory == memory and not row.note
