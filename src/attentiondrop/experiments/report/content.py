"""The sections of a report, in order. Sections without content are left out."""

from __future__ import annotations

from ..analysis.summary import Summary
from .ablations import ablations
from .blocks import Section
from .calibration import calibration
from .differences import differences
from .exhibited import exhibited
from .gpu_seconds import gpu_seconds
from .palette import looks
from .provenance import again, cost, environment, problems, tuning
from .results import results
from .robustness import robustness
from .sizes import sizes
from .training import training


def sections(summary: Summary) -> list[Section]:
    """All sections below the title and the introduction."""
    looked = looks(row.label for row in summary.rows)
    found = [
        results(summary),
        differences(summary),
        gpu_seconds(summary, looked),
        training(summary, looked),
        calibration(summary, looked),
        robustness(summary, looked),
        exhibited(summary),
        ablations(summary),
        cost(summary),
        tuning(summary),
        sizes(summary),
        problems(summary),
        environment(summary),
        again(summary),
    ]
    return [each for each in found if each is not None]
