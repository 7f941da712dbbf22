"""Results of studies as tests make them up, in the form in which studies are published."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

OURS, OTHER, R_DROP = "blur(sigma_max=2.0)+consistency(weight=1.0)", "hard(p=0.2,k=5)", "r-drop(weight=0.6,p=0.1)"
CONTROL, DROPOUT = "r-drop(weight=0.0,p=0.05)", "dropout(p=0.05)"
COLUMNS = ("method", "seed", "part", "status", "test_accuracy", "validation_accuracy", "test_ece", "gpu_seconds")


def write_results(folder: Path, rows: Iterable[tuple[Any, ...]]) -> None:
    """A results.csv whose rows have the values of the first columns; the others are empty."""
    folder.mkdir(exist_ok=True)
    with (folder / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([COLUMNS, *([*row, *[""] * (len(COLUMNS) - len(row))] for row in rows)])


def publish(
    folder: Path,
    methods: dict[str, tuple[float, float]],
    seeds: int,
    ece: dict[str, float] | None = None,
    seconds: dict[str, float] | None = None,
    *,
    first_seed: int = 0,
    missing: tuple[str, ...] = (),
) -> None:
    """Methods with the means of their validation and test accuracies; seeds differ by a little.

    `missing` are methods that have not run yet.
    """
    rows: list[tuple[Any, ...]] = []
    for order, (method, (validation, test)) in enumerate(methods.items()):
        for seed in range(first_seed, seeds):
            noise = 0.001 * ((seed + 1) * (order + 2) % 11 - 5.5)  # over ten seeds, a mean of 0
            error, time = (ece or {}).get(method, 0.05) + noise / 10, (seconds or {}).get(method, "")
            rows.append((method, seed, "runs", "finished", test + noise, validation + noise, error, time))
    rows += [(OTHER, 1000, "tuning", "finished", 0.999, 0.999, 0), (OTHER, 99, "runs", "diverged")]
    write_results(folder, [*rows, *((method, 0, "runs", "missing") for method in missing)])


def cells_of(table: str, start: str) -> list[str]:
    """The cells of the row that begins with this one."""
    (found,) = [line for line in table.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in found.strip("|").split("|")]
