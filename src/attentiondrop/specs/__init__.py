"""What to do to the attention, as data.

A spec says *what* is computed (`docs/semantics.md` says how). `attentiondrop.reference`, `attentiondrop.torch` and
`attentiondrop.keras` compute it.
"""

from .base import REGISTRY, Level, Rate, Spec
from .logits import BlurSmoothing, DropKey, GaussianNoise, HardMasking, TemperatureNoise

# This import stays here: lists of specs for users follow the order of the imports.
from .after_softmax import AttentionDropout, DropAttention, DropHead, HeadMask  # isort: skip
from .consistency import Consistency, r_drop
from .containers import Compose, OneOf
from .draws import Draws

__all__ = [
    "REGISTRY",
    "AttentionDropout",
    "BlurSmoothing",
    "Compose",
    "Consistency",
    "DropAttention",
    "DropHead",
    "DropKey",
    "Draws",
    "GaussianNoise",
    "HardMasking",
    "HeadMask",
    "Level",
    "OneOf",
    "Rate",
    "Spec",
    "TemperatureNoise",
    "r_drop",
]
