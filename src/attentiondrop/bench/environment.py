"""The environment of a timing: device, versions, commit, date. No paths and no names of machines."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from .. import __version__


@dataclass(frozen=True)
class Environment:
    """Texts that are stored with every timing."""

    device: str
    driver: str
    torch: str
    triton: str
    timm: str
    attentiondrop: str
    python: str
    commit: str
    date: str

    @property
    def slug(self) -> str:
        """A short text for file names, such as `h200-torch2.11`."""
        name = re.sub(r"nvidia|geforce", "", self.device.split(",")[0], flags=re.IGNORECASE).lower()
        name = re.sub(r"[^a-z0-9]+", "-", name).strip("-")
        return f"{name}-torch{'.'.join(self.torch.split('.')[:2])}"


def environment(device: str, commit: str | None = None) -> Environment:
    """The environment of this machine. Give `commit` for copies of the source without git."""
    return Environment(
        device=_device(device),
        driver=_driver() if device == "cuda" else "",
        torch=torch.__version__,
        triton=version_of("triton"),
        timm=version_of("timm"),
        attentiondrop=__version__,
        python=platform.python_version(),
        commit=commit or source_commit(Path(__file__).parents[1]),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def source_commit(package: Path) -> str:
    """The commit that the package is checked out from, "+dirty" if it was changed since; "unknown" outside of git."""
    git = shutil.which("git")
    # An installed copy may be inside another repository, which does not track it.
    if git is None or _git(git, package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return "unknown"
    commit = _git(git, package, "rev-parse", "--short", "HEAD")
    changed = _git(git, package, "status", "--porcelain", "--", ".")
    return "unknown" if commit is None else commit + "+dirty" * bool(changed)


def _git(git: str, folder: Path, *command: str) -> str | None:
    # Without this option, `git status` writes the index: a commit at the same time fails, and a lock may stay behind.
    asked = [git, "--no-optional-locks", *command]
    try:
        done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _device(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


@cache
def _driver() -> str:
    """Asked once a process: the tool takes longer than a warm run needs to its first step."""
    tool = shutil.which("nvidia-smi")
    query = ["--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run([tool or "nvidia-smi", *query], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"CUDA {torch.version.cuda}"
    return f"{done.stdout.splitlines()[0].strip()}, CUDA {torch.version.cuda}"


@cache
def version_of(package: str) -> str:
    """The installed version of a package, or "not installed". Asked once a process: it is read from a file."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
