"""Files that are never half written, even after a crash: write a temporary file, sync it, then rename it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import AttentionDropError


class DamagedRecordError(AttentionDropError):
    """A file exists but cannot be read."""


def damaged(path: Path, error: Exception) -> DamagedRecordError:
    """The error for a file that cannot be read, in one line."""
    return DamagedRecordError(f"{path} cannot be read: {' '.join(str(error).split()) or type(error).__name__}")


def make_writable(folder: Path) -> None:
    """Create `folder` if needed. Called before training, to be sure that results can be written there."""
    if folder.is_file():
        raise NotADirectoryError(errno.ENOTDIR, "expected a folder for the results, this is a file", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "results cannot be written into this folder", str(folder))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. The file written there replaces `path`, unless an error is raised.

    A reader sees the old file or the new one, never half of one, even after a crash.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        os.chmod(temporary, mode)  # the mode of any new file: some libraries make their files private
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON. Numbers that are not finite are refused, because JSON has none."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any | None:
    """The content of a JSON file, or None if there is no file. Raises `DamagedRecordError` if it cannot be read."""
    return _read(path, lambda text: json.loads(text))


def append_line(path: Path, content: dict[str, Any]) -> None:
    """Add one line of JSON and sync it to disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(content, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file. A last line that a crash cut off is ignored."""

    def whole_lines(text: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    return _read(path, whole_lines) or []


def _read(path: Path, parse: Callable[[str], Any]) -> Any | None:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from error
