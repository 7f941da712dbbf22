"""`attentiondrop info`: installed versions, available specs and the device, without loading any framework."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from .. import __version__
from ..specs import REGISTRY, Spec

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_PACKAGES = ("numpy", "torch", "timm", "transformers")


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    text = "Print versions, specs and the device."
    return subparsers.add_parser("info", help=text, description=text)


def run(args: argparse.Namespace) -> int:
    """Print it all."""
    print(f"attentiondrop {__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(", ".join(f"{package} {_version(package)}" for package in _PACKAGES))
    gpus = _gpus()
    print("device: " + "; ".join([*(gpu.name for gpu in gpus), f"{platform.machine()} CPU, {os.cpu_count()} cores"]))
    print(f"our kernels for rows of at most 256 keys: {_short_rows(gpus)}")
    print("specs:")
    for name, cls in REGISTRY.items():
        print(f"  {_default(name, cls):<24} {(cls.__doc__ or '').strip().splitlines()[0]}")
    return 0


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _default(name: str, cls: type[Spec]) -> str:
    try:
        return str(cls())
    except TypeError:  # compose and oneof have no defaults, since they need parts
        return f"{name}(...)"


class _Gpu(NamedTuple):
    name: str
    #: The compute capability, such as 9.0.
    capability: float


def _gpus() -> list[_Gpu]:
    """The GPUs that nvidia-smi lists. (torch knows them too, but would have to be loaded.)"""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    asked = [tool, "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        listed = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in filter(None, map(str.strip, listed.splitlines())):
        name, _, capability = line.rpartition(",")
        try:
            found.append(_Gpu(name.strip(), float(capability)))
        except ValueError:  # an old tool that does not know the second question
            found.append(_Gpu(line, 0.0))
    return found


def _short_rows(gpus: list[_Gpu]) -> str:
    """Which kernels serve short rows here, and if it is not our own, why."""
    if not gpus:
        return "not used, since there is no GPU"
    lowest = min(gpu.capability for gpu in gpus)
    if lowest < 8:
        return f"not used, since they need compute capability 8.0 and this GPU has {lowest}"
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "not used, since cuda-bindings is not installed (it comes with torch for CUDA)"
    kind = "warpgroups in the backward of 64-wide heads" if lowest == 9 else "single warps"
    return f"used, for compute capability {lowest} ({kind}); compiled when they are first called"
