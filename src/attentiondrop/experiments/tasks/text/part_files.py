"""A folder with one file for each part of a data set."""

from __future__ import annotations

from pathlib import Path

from .line_files import TextFileError

#: Part -> what the name of its file contains.
PART_WORDS = {"train": "train", "validation": "valid", "test": "test"}


def only_file(root: Path, word: str) -> Path:
    """The file whose name contains a word."""
    if not root.is_dir():
        raise TextFileError(f"data.root: expected a folder with a file for each part, received {str(root)!r}")
    found = sorted(path for path in root.iterdir() if path.is_file() and word in path.name)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise TextFileError(f"data.root: expected one file with {word!r} in its name in {str(root)!r}, found {names}")
    return found[0]
