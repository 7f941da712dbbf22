"""What a second pass costs: steps with two passes to those with one, by model, from the measured times of steps."""

from __future__ import annotations

from pathlib import Path

import studies
import tables
from result_files import csv_rows
from wording import time_ratio

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "results"
#: Steps of all methods with other models.
METHODS = BENCHMARKS / "methods-h200-torch2.11.csv"
#: Steps of the translation model.
STEPS = BENCHMARKS / "study-steps-h200-torch2.11.md"
#: Our best method and `none`, all in the same kernels, timed in one session.
EQUAL = studies.RESULTS / "cifar10-20pct-equal"


def in_study_1() -> float:
    """With the model of study 1."""
    return float(time_ratio(tables.read(EQUAL), studies.SEARCHED, "none", 4))


def with_other_models(other: str = "none") -> tuple[float, float]:
    """With a small ViT and batches of 256, and with ViT-B/16. `other` is what two passes are compared with."""
    small, base = (_costs(model) for model in ("small", "vit-b16"))
    ours = "blur+consistency"
    return (small[ours] / small.get(other, 1.0), base[ours] / base.get(other, 1.0))


def in_translation() -> float:
    """With the model of Multi30k, in the kernels and with the compiled loss of that study. The first table has both."""
    lines = STEPS.read_text(encoding="utf-8").partition("`training.compile=true`")[0].splitlines()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| both |")]
    steps = {row[1]: float(row[2]) for row in rows}
    (ours,) = (label for label in steps if label.startswith("blur("))
    return steps[ours] / steps["none"]


def elsewhere() -> str:
    """In words."""
    small, base = with_other_models()
    return f"{small:.2f} times as long with a small ViT and batches of 256, and {base:.2f} times with ViT-B/16"


def to_r_drop_elsewhere() -> str:
    """What our second pass costs to that of R-Drop."""
    small, base = with_other_models("r-drop")
    return (
        "measured with wrong labels, both in the kernels of this library; "
        f"{small:.2f} with a small ViT and batches of 256, {base:.2f} with ViT-B/16"
    )


def _costs(model: str) -> dict[str, float]:
    """Method -> its step, as a ratio to one of `none`."""
    return {row["method"]: float(row["cost"]) for row in csv_rows(METHODS) if row["model"] == model}
