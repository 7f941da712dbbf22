"""The environment of a run: versions, commit, platform, device. Stored with every run as plain texts."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from ... import __version__
from ...bench.environment import environment as device_and_versions
from ...bench.environment import source_commit, version_of
from ..train.accelerator import processes
from .store import AT_ONCE, VERSIONS

_PACKAGES = ("torchvision", "accelerate", "numpy")


def environment(device: str, at_once: int = 1) -> dict[str, str]:
    """The environment on this machine; `at_once` is the number of runs that share it."""
    found = {key: text for key, text in dataclasses.asdict(device_and_versions(device, _commit())).items() if text}
    found |= {name: version_of(name) for name in _PACKAGES}
    return found | {
        "platform": platform.platform(),
        AT_ONCE: str(at_once),
        "processes": str(processes()),
        "threads": str(torch.get_num_threads()),
    }


def versions() -> dict[str, str]:
    """The versions of torch and of this package, and its commit, as in `environment`."""
    return {"torch": torch.__version__, "attentiondrop": __version__, "commit": _commit()}


@cache
def _commit() -> str:
    """The commit of this code. Cached, because asking git takes longer than scoring a small model."""
    return source_commit(Path(__file__).parents[1])


def continued(then: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """The environment of a resumed run. Where a version or the device differs from those it began with, both are named.

    Of the runs at once, the larger number counts: a run that shared the machine for a while was not alone.

    >>> continued({"torch": "2.11.0", "runs at once": "8"}, {"torch": "2.15.0", "python": "3.12", "runs at once": "1"})
    {'torch': '2.11.0, then 2.15.0', 'python': '3.12', 'runs at once': '8'}
    """
    found = dict(now)
    if AT_ONCE in then:
        found[AT_ONCE] = str(max(int(then[AT_ONCE]), int(now.get(AT_ONCE, "1"))))
    for key in (*VERSIONS, "device"):
        if key in then and then[key].split(", then ")[-1] != now.get(key):
            found[key] = f"{then[key]}, then {now.get(key)}"
        elif key in then:
            found[key] = then[key]
    return found
