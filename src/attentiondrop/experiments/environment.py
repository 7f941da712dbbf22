"""With what a run was made: versions, platform, device."""

from __future__ import annotations

import os
import platform

import timm
import torch
import torchmetrics

from .. import __version__


def environment(device: str) -> dict[str, str]:
    """Plain texts, stored with every run."""
    return {
        "attentiondrop": __version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
        "torchmetrics": torchmetrics.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": _device(device),
    }


def _device(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
