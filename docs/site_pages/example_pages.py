"""Copies of the programs in `examples/` that sphinx-gallery can show: with a title, and with a page that lists them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from .copied_files import write_folder

_HEADER = """Examples
========

Whole programs, each in one file. They generate their data or use scikit-learn's digits, so nothing is downloaded.
Run one with ``python examples/NAME.py``.
"""


def prepare(source: Path, folder: Path) -> None:
    """Write the copies into `folder`."""
    programs = {path.name: _titled(path).encode() for path in sorted(source.glob("*.py"))}
    write_folder(folder, {"GALLERY_HEADER.rst": _HEADER.encode(), **programs})


def _titled(path: Path) -> str:
    """The program with its name as a title before its docstring."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    about = ast.get_docstring(tree) or ""
    about = re.sub(r"\n\n(?= {4})", r"\n\n.. code-block:: bash\n\n", about)  # an indented paragraph is a command
    title = f"{path.name}\n{'=' * len(path.name)}\n\n{about}\n"
    return f'r"""\n{title}"""\n' + "".join(lines[tree.body[0].end_lineno :])
