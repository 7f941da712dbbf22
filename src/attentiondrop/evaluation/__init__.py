"""How far a classifier can be trusted: calibration of its probabilities, robustness against attacks on its input."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        'attentiondrop.evaluation needs PyTorch; install it with: pip install "attentiondrop[torch]"'
    ) from error

from .attacks import pgd_attack
from .calibration import (
    ReliabilityDiagram,
    Scores,
    brier_score,
    calibration_error,
    reliability,
    scores,
)
from .robustness import RobustnessReport, robust_accuracy

__all__ = [
    "ReliabilityDiagram",
    "RobustnessReport",
    "Scores",
    "brier_score",
    "calibration_error",
    "pgd_attack",
    "reliability",
    "robust_accuracy",
    "scores",
]
