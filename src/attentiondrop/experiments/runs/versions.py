"""The versions in the records of runs, in words. Numbers may change with them, although the recipe is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from .store import Run


def versions_text(environment: Mapping[str, str]) -> str:
    """The versions of torch and of this package in the environment of a run, in words.

    >>> versions_text({"torch": "2.15.0", "attentiondrop": "0.1.0", "commit": "abc1234"})
    'torch 2.15.0, attentiondrop 0.1.0 (commit abc1234)'
    """
    commit = environment.get("commit", "unknown")
    source = "" if commit == "unknown" else f" (commit {commit})"
    torch, ours = (environment.get(name, "unknown") for name in ("torch", "attentiondrop"))
    return f"torch {torch}, attentiondrop {ours}{source}"


def run_versions(run: Run) -> str:
    """The versions that trained a run and, if they differ, those that scored it."""
    trained = versions_text(run.environment)
    scored = None if run.result is None or run.result.scored_with is None else versions_text(run.result.scored_with)
    return trained if scored is None or trained.endswith(scored) else f"{trained}, scored with {scored}"


def counted(found: Counter[str]) -> str:
    """Versions with the number of their runs: `torch 2.11, ... (3 runs); torch 2.15, ... (1 run)`."""
    return "; ".join(f"{text} ({count} run{'s' * (count != 1)})" for text, count in found.items())
