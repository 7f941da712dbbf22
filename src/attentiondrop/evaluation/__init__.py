"""How far a classifier can be trusted: calibration of its probabilities, and robustness against attacks."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        'attentiondrop.evaluation needs PyTorch; install it with: pip install "attentiondrop[torch]"'
    ) from error

from ..scores import ReliabilityDiagram, RobustnessReport, Scores
from .attacks import pgd_attack
from .calibration import brier_score, calibration_error, reliability, scores
from .robustness import robust_accuracy
from .temperature import fit_temperature

__all__ = [
    "ReliabilityDiagram",
    "RobustnessReport",
    "Scores",
    "brier_score",
    "calibration_error",
    "fit_temperature",
    "pgd_attack",
    "reliability",
    "robust_accuracy",
    "scores",
]
