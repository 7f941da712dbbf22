from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from attentiondrop.experiments.runs import pool


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are threads of this process, so that a test can replace what they do."""

    def executor(workers: int, context: object, prepare: object, given: tuple[object, ...]) -> ThreadPoolExecutor:
        *_, reports, pace = given
        shared = {"_reports": reports, "_pace": pace}
        return ThreadPoolExecutor(workers, initializer=lambda: vars(pool).update(shared))

    monkeypatch.setattr(pool, "ProcessPoolExecutor", executor)
    for name in ("_reports", "_pace"):
        monkeypatch.setattr(pool, name, None)
    monkeypatch.setattr(pool, "_POLL", 0.02)
    monkeypatch.setattr(pool, "check_jobs", lambda jobs, say: None)
