"""The final scores of a study as it was published, read without the code of docs/evidence."""

from __future__ import annotations

import csv
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "docs" / "evidence" / "results"


def scores(folder: str, column: str, part: str = "runs") -> dict[str, dict[str, float]]:
    """Method -> seed -> a column of results.csv, for the runs of a part that have finished."""
    found: dict[str, dict[str, float]] = {}
    with (RESULTS / folder / "results.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["part"] == part and row["status"] == "finished":
                found.setdefault(row["method"], {})[row["seed"]] = float(row[column])
    return found
