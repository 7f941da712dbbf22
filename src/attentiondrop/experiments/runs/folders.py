"""The folders of runs within the folder of a study."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..methods.parse import read_method
from .kinds import FINAL, KINDS
from .store import REQUEST


def run_folder(out: Path, method: str, seed: int, part: str = FINAL) -> Path:
    """The folder of a run; `part` is its kind, see `kinds`. An older folder of the same method is kept."""
    asked, name = read_method(method), f"seed{seed}"
    folder = out / part / asked.slug / name
    if folder.exists():
        return folder
    older = (out / part / slug / name for slug in asked.older_slugs())
    return next((each for each in older if each.exists()), folder)


def run_folders(out: Path) -> Iterator[tuple[str, Path]]:
    """The kind and the folder of every run that was started in `out`."""
    for kind in KINDS:
        for request in sorted((out / kind).glob(f"*/*/{REQUEST}")):
            yield kind, request.parent
