"""Several methods, one recipe, paired seeds: runs what is missing, records it, sums it up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from ..errors import ArgumentError
from . import record, table
from .data import digits
from .methods import Method
from .recipe import Recipe
from .record import RunResult
from .run import resolved, run


class Listener(Protocol):
    """Who hears how far a comparison has come."""

    def say(self, line: str) -> None:
        """Something a person should read, in one line."""

    def plan(self, epochs: int) -> None:
        """That many epochs have to be trained, over all runs."""

    def progress(self, label: str, epochs: int) -> None:
        """That many of them are done; `label` names the run that is going on."""


def compare(methods: Sequence[Method], seeds: int, recipe: Recipe, out: Path, listener: Listener) -> list[table.Row]:
    """Train every method with the seeds 0 to `seeds - 1`, keep what `out` already holds, write `out/results.json`.

    The seeds are the outer loop: after an interruption, what is there is a comparison of all methods on fewer seeds.
    """
    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device 'cuda': torch sees no CUDA device on this machine")
    data = digits.load(recipe.samples)
    pairs = [(method, seed) for seed in range(seeds) for method in methods]
    kept = {pair: _kept(out, *pair, recipe, data.checksum, listener) for pair in pairs}
    results = {pair: result for pair, result in kept.items() if result is not None}
    missing = [pair for pair in pairs if pair not in results]
    if results:
        listener.say(f"{len(results)} of {len(pairs)} runs are finished already in {out}")
    listener.plan(len(missing) * recipe.epochs)
    data = data.to(recipe.device)
    for index, (method, seed) in enumerate(missing):
        label, before = _label(method, seed), index * recipe.epochs
        listener.progress(label, before)
        result = run(method, seed, recipe, data, partial(_on_epoch, listener, label, before))
        record.save(record.result_path(out, method, seed), result)
        results[method, seed] = result
        listener.say(f"{label}: {_outcome(result)}, {result.seconds:.1f} s")
        listener.progress(label, before + recipe.epochs)
    ordered = [results[pair] for pair in pairs]
    rows = table.summarise(ordered)
    record.write_json(out / "results.json", table.to_json(rows, ordered))
    return rows


def _kept(out: Path, method: Method, seed: int, recipe: Recipe, checksum: str, listener: Listener) -> RunResult | None:
    """The stored result of a run if there is one and it still counts."""
    try:
        result = record.load(record.result_path(out, method, seed))
    except record.DamagedRecordError as error:
        listener.say(f"{_label(method, seed)}: run again, since {error}")
        return None
    if result is not None and (changes := result.changes(method.text, seed, resolved(recipe), checksum)):
        listener.say(f"{_label(method, seed)}: run again, since settings changed ({'; '.join(changes)})")
        return None
    return result


def _on_epoch(listener: Listener, label: str, before: int, done: int) -> None:
    listener.progress(label, before + done)


def _label(method: Method, seed: int) -> str:
    return f"{method.text}, seed {seed}"


def _outcome(result: RunResult) -> str:
    return "diverged" if result.metrics is None else f"accuracy {100 * result.metrics.accuracy:.1f} %"
