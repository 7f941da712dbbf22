"""`attentiondrop info`: installed versions, available specs and the device, without loading any framework."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
from typing import TYPE_CHECKING

from .. import __version__
from ..specs import REGISTRY, Spec

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_PACKAGES = ("numpy", "torch", "timm", "transformers")


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Declare the arguments."""
    text = "print versions, specs and the device"
    return subparsers.add_parser("info", help=text, description=text[0].upper() + text[1:] + ".")


def run(args: argparse.Namespace) -> int:
    """Print it all."""
    print(f"attentiondrop {__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(", ".join(f"{package} {_version(package)}" for package in _PACKAGES))
    print(f"device: {_device()}")
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


def _device() -> str:
    """The CPU, and the GPUs that nvidia-smi lists. (torch knows them too, but would have to be loaded.)"""
    cpu = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return cpu
    try:
        listed = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return cpu
    return "; ".join([*(line.strip() for line in listed.stdout.splitlines() if line.strip()), cpu])
