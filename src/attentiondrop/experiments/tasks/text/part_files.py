"""A folder with one file for each part of a data set."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from .line_files import TextFileError

#: Part -> what the name of its file contains.
PART_WORDS = {"train": "train", "validation": "valid", "test": "test"}


def files_of_parts(root: Path, parts: Iterable[str] = PART_WORDS) -> dict[str, Path]:
    """Part -> its file. One file for two parts is an error: the name `contest_train.txt` contains `test`, too."""
    found = {part: _only_file(root, PART_WORDS[part]) for part in parts}
    for one, other in itertools.combinations(found, 2):
        if found[one] == found[other]:
            raise TextFileError(
                f"data.root: expected a file of its own for each part in {str(root)!r}, the name {found[one].name!r} "
                f"contains both {PART_WORDS[one]!r} and {PART_WORDS[other]!r}"
            )
    return found


def _only_file(root: Path, word: str) -> Path:
    if not root.is_dir():
        raise TextFileError(f"data.root: expected a folder with a file for each part, received {str(root)!r}")
    found = sorted(path for path in root.iterdir() if path.is_file() and word in path.name)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise TextFileError(f"data.root: expected one file with {word!r} in its name in {str(root)!r}, found {names}")
    return found[0]
