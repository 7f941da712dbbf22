"""Read text files, plain or gzipped, in UTF-8. An error names the file and the line."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from ....errors import ArgumentError

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextFileError(ArgumentError):
    """A text file that cannot be read, or that does not hold what it should."""


def find_file(root: str | Path, name: str) -> Path:
    """The file `name` in the folder `root`, or `name` with `.gz` if there is no such file.

    `root` may also begin with "~".
    """
    folder = Path(root).expanduser()
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    if not folder.is_dir():
        raise TextFileError(f"data.root: expected a folder with {name} or {name}.gz, there is no folder {str(root)!r}")
    there = sorted(path.name for path in folder.iterdir())
    shown = ", ".join(there[:12]) + (f" and {len(there) - 12} more" if len(there) > 12 else "")
    raise TextFileError(
        f"data.root: expected {name} or {name}.gz in the folder {str(root)!r}, which has {shown or 'nothing'}"
    )


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, unpacked if it is gzipped. The content decides that, not the name."""
    path = Path(path).expanduser()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TextFileError(f"{path}: expected a text file that can be read: {error.strerror or error}") from error
    if content.startswith(_GZIP):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise TextFileError(f"{path}: expected a whole gzip file: {' '.join(str(error).split())}") from error
    return content.removeprefix(_BYTE_ORDER_MARK)


def read_text(path: str | Path) -> str:
    """The whole text of a file, with its line ends as they are. Bytes that are not UTF-8 are an error."""
    content = read_bytes(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, content.count(b"\n", 0, error.start) + 1, error) from error


def read_lines(path: str | Path, *, allow_empty: bool = False) -> list[str]:
    """The lines of a file, without their ends.

    Only "\\n" and "\\r\\n" end a line. (`str.splitlines` would also split at characters that occur inside of
    sentences.) Lines without text are an error unless `allow_empty` is set: they usually mean that files got out of
    step.
    """
    content = read_bytes(path)
    if not content:
        raise TextFileError(f"{path}: expected a text file with lines, the file is empty")
    lines = []
    for number, raw in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        try:
            line = raw.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, number, error) from error
        if not allow_empty and not line.strip():
            raise TextFileError(f"{path}, line {number}: expected text, the line is empty")
        lines.append(line)
    return lines


def _not_utf8(path: str | Path, line: int, error: UnicodeDecodeError) -> TextFileError:
    bad = error.object[error.start]
    return TextFileError(f"{path}, line {line}: expected text in UTF-8, found the byte 0x{bad:02x}: {error.reason}")
