"""A CSV file with a row per run, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from ..analysis.gpu_time import gpu_seconds
from ..analysis.outcomes import Outcome, by_seed
from ..analysis.summary import Row, Summary
from .figures import epsilon

#: The parts of the data that runs are scored on.
PARTS = ("test", "validation")


def runs_csv(summary: Summary) -> str:
    """The text of results.csv. A missing number is an empty field. A metric that a part never has gets no column.

    The difference of the primary metric is between this run and the baseline run with the same seed. `p_value` (paired
    t test over the seeds) and `p_holm` (adjusted for the number of methods) belong to the method, so all its rows
    repeat them.
    """
    rows = [_row(summary, each) for each in summary.outcomes]
    left_out = _never_scored(summary, rows)
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in left_out]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _never_scored(summary: Summary, rows: Sequence[dict[str, Any]]) -> set[str]:
    """Columns of metrics that a part does not have, such as an error after scaling on the part that scales."""
    found = set()
    for part in PARTS:
        names = [f"{part}_{metric.name}" for metric in summary.metrics.all]
        empty = {name for name in names if all(row[name] is None for row in rows)}
        # (A part that was not scored at all, such as the test part of an ablation, keeps its columns.)
        found |= empty if len(empty) < len(names) else set()
    return found


def _row(summary: Summary, each: Outcome) -> dict[str, Any]:
    result = each.result
    found: dict[str, Any] = {"method": each.method, "seed": each.seed, "part": each.part, "status": each.status}
    for part in PARTS:
        scores = (None if result is None else getattr(result, part)) or {}
        # The metrics first, then what else was measured, such as the temperature behind a scaled error.
        names = [*(metric.name for metric in summary.metrics.all), *scores]
        found |= {f"{part}_{name}": scores.get(name) for name in names}
    found |= _compared(summary, each)
    for name in ("best_epoch", "epochs", "steps", "parameters", "throughput", "peak_memory_mib", "seconds", "capture"):
        found[name] = None if result is None else getattr(result, name)
    found |= _gpu_time(summary, each)
    if result is not None and result.robustness is not None:
        attack = result.robustness
        for value, accuracy in zip(attack.epsilons, attack.accuracy, strict=True):
            found[f"accuracy_{attack.norm}_{epsilon(value)}"] = accuracy
        found["attack_sound"] = attack.sound
    found["detail"] = None if each.status == "finished" else each.detail
    if each.run is not None:
        found |= {f"environment_{key}": value for key, value in each.run.environment.items()}
        found |= {f"checksum_{key}": value for key, value in each.run.request.checksums.items()}
        if result is not None and result.drawn_checksum is not None:
            found["checksum_drawn"] = result.drawn_checksum
    return found


def _gpu_time(summary: Summary, each: Outcome) -> dict[str, float | None]:
    cost = next((row.cost for row in summary.rows if row.entry.method == each.method), None)
    seconds = gpu_seconds(each, {} if cost is None else {each.method: cost})
    return {"step_seconds": None if cost is None else cost.seconds, "gpu_seconds": seconds}


def _compared(summary: Summary, each: Outcome) -> dict[str, float | None]:
    row = next((row for row in summary.rows if any(each is other for other in row.outcomes)), None)
    name = summary.metrics.primary.name
    empty: dict[str, float | None] = {f"{name}_difference": None, "p_value": None, "p_holm": None}
    if row is None or row.difference is None or summary.baseline is None:
        return empty
    ours, theirs = _scores(row).get(each.seed), _scores(summary.baseline).get(each.seed)
    paired = None if ours is None or theirs is None else ours - theirs
    return {f"{name}_difference": paired, "p_value": row.difference.p_value, "p_holm": row.holm_p}


def _scores(row: Row) -> dict[int, float]:
    return by_seed(row.outcomes, lambda result: None if result.test is None else result.test.get(row.primary.name))
