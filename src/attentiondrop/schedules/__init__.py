"""Rates that change with the progress of training, with the depth of the layer, or from head to head.

Any rate of a spec (`p`, `sigma`, `sigma_min`, `sigma_max`, `weight`) may be one of these instead of a number::

    ad.HardMasking(p=ad.schedules.Warmup(0.1, share=0.2))
    ad.DropKey(p=ad.schedules.Depth(0.3, 0.0))

A schedule is data, like a spec: frozen, validated, comparable, with the same text and dictionary forms. `at` evaluates
it; `Spec.at` evaluates a whole spec, and `attach` does that for every layer when `set_progress` is called.
"""

from .base import REGISTRY, Schedule, build, check_progress, evaluate, from_dict
from .over_training import Constant, Cosine, Linear, Piecewise, Steps, VShape, Warmup

# This import stays here: errors list schedules in the order of the imports.
from .over_layers import Depth, PerHead, PerLayer  # isort: skip

#: The name of `VShape` in texts.
v_shape = VShape

__all__ = [
    "REGISTRY",
    "Constant",
    "Cosine",
    "Depth",
    "Linear",
    "PerHead",
    "PerLayer",
    "Piecewise",
    "Schedule",
    "Steps",
    "VShape",
    "Warmup",
    "build",
    "check_progress",
    "evaluate",
    "from_dict",
    "v_shape",
]
