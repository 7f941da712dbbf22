"""With what a run was made: versions, commit, platform, device. Plain texts, stored with every run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform

import torch

from ..bench.environment import environment as device_and_versions
from .launching import processes
from .record import AT_ONCE

_PACKAGES = ("torchvision", "torchmetrics", "accelerate", "numpy")


def environment(device: str, at_once: int = 1) -> dict[str, str]:
    """Look at this machine."""
    found = {key: text for key, text in dataclasses.asdict(device_and_versions(device)).items() if text}
    packages = {distribution.name: distribution.version for distribution in importlib.metadata.distributions()}
    found |= {name: packages[name] for name in _PACKAGES if name in packages}
    return found | {
        "platform": platform.platform(),
        AT_ONCE: str(at_once),
        "processes": str(processes()),
        "threads": str(torch.get_num_threads()),
    }
