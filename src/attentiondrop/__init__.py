"""AttentionDrop: regularise the attention distribution itself, in training only.

A spec in this package says what to do. `attentiondrop.reference` defines the result in NumPy. `attentiondrop.torch` and
`attentiondrop.keras` compute it. Importing this package loads no framework.
"""

from . import presets, schedules
from .adaptive import EntropyTarget, Learnable
from .building import from_dict
from .errors import (
    ArgumentError,
    AttachError,
    AttentionDropError,
    AttentionDropWarning,
    BackendError,
    ParseError,
    ShapeError,
)
from .parsing import parse
from .specs import (
    AttentionDropout,
    BlurSmoothing,
    Compose,
    Consistency,
    DropAttention,
    DropHead,
    DropKey,
    GaussianNoise,
    HardMasking,
    HeadMask,
    OneOf,
    Spec,
    TemperatureNoise,
    r_drop,
)

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "AttachError",
    "AttentionDropError",
    "AttentionDropWarning",
    "AttentionDropout",
    "BackendError",
    "BlurSmoothing",
    "Compose",
    "Consistency",
    "DropAttention",
    "DropHead",
    "DropKey",
    "EntropyTarget",
    "GaussianNoise",
    "HardMasking",
    "HeadMask",
    "Learnable",
    "OneOf",
    "ParseError",
    "ShapeError",
    "Spec",
    "TemperatureNoise",
    "from_dict",
    "parse",
    "presets",
    "r_drop",
    "schedules",
]
