"""With what a run was made: versions, commit, platform, device. Plain texts, stored with every run."""

from __future__ import annotations

import dataclasses
import platform

import torch

from ..bench.environment import environment as device_and_versions
from ..bench.environment import version_of
from .launching import processes
from .record import AT_ONCE

_PACKAGES = ("torchvision", "torchmetrics", "accelerate", "numpy")


def environment(device: str, at_once: int = 1) -> dict[str, str]:
    """Look at this machine."""
    found = {key: text for key, text in dataclasses.asdict(device_and_versions(device)).items() if text}
    found |= {name: version_of(name) for name in _PACKAGES}
    return found | {
        "platform": platform.platform(),
        AT_ONCE: str(at_once),
        "processes": str(processes()),
        "threads": str(torch.get_num_threads()),
    }
