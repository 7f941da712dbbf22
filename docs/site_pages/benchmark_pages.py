"""Copies of `benchmarks/README.md` and of all results, so that they are pages of the site, too."""

from __future__ import annotations

import re
from pathlib import Path

from .copied_files import write_folder

_LINK = re.compile(r"\]\((?:\.\./)+benchmarks/results/")
_LIST = "\n## Results\n\n```{{toctree}}\n:maxdepth: 1\n\n{}\n```\n"


def prepare(source: Path, folder: Path) -> None:
    """Write the copies into `folder`, which is a part of the site."""
    files = {f"results/{path.name}": path.read_bytes() for path in sorted((source / "results").iterdir())}
    # Several have the same title, so the list shows their file names too.
    entries = [
        f"{content.decode().splitlines()[0].removeprefix('# ')} ({Path(name).stem}) <{name}>"
        for name, content in files.items()
        if name.endswith(".md")
    ]
    about = (source / "README.md").read_text(encoding="utf-8") + _LIST.format("\n".join(entries))
    write_folder(folder, files | {"index.md": about.encode()})


def relinked(text: str) -> str:
    """A page whose links to results lead to these copies."""
    return _LINK.sub("](/benchmarks/results/", text)
