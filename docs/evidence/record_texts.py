"""The texts of a file of records, as `benchmarks/evidence.py` packs them."""

from __future__ import annotations

import tarfile
from pathlib import Path


def record_texts(records: Path) -> dict[str, str]:
    """The name of each file in it and its text; nothing if there are no records."""
    if not records.exists():
        return {}
    with tarfile.open(records) as archive:
        return {
            member.name: file.read().decode()
            for member in archive  # in the order of the file: to go back in it is slow
            if (file := archive.extractfile(member)) is not None
        }
