"""Check how much memory a packed file needs, before any of it is unpacked."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Sequence

import numpy as np

#: The packing ratio is not checked for unpacked sizes up to this, in bytes.
HARMLESS = 1 << 30
#: Above the ratio of photos and of drawings, and below that of a file which is made to fill the memory.
HIGHEST_RATIO = 200


def check_unpacked_sizes(archive: zipfile.ZipFile, members: Sequence[str], packed: int) -> None:
    """Raise ValueError if an array of `members` does not have its declared size, or all are too large to unpack.

    `packed` is the size of the file in bytes.
    """
    total = 0
    for member in members:
        declared, there = _declared_bytes(archive, member), archive.getinfo(member).file_size
        if declared != there:
            raise ValueError(f"{member} should have {declared} bytes by its shape and type, and has {there}")
        total += there
    if total > HARMLESS and total > HIGHEST_RATIO * packed:
        raise ValueError(
            f"its arrays unpack to {_gigabytes(total)}, {total // packed} times the size of the file; if that is "
            "meant, save it with numpy.savez, which does not pack"
        )
    memory = physical_memory()
    if memory is not None and total > memory:
        raise ValueError(f"its arrays take {_gigabytes(total)} of memory, this machine has {_gigabytes(memory)}")


def physical_memory() -> int | None:
    """The memory of this machine in bytes, or None if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _declared_bytes(archive: zipfile.ZipFile, member: str) -> int:
    """The size that a .npy file should have: its header, and the array that the header declares."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{member} is in version {version} of NumPy's format, expected 1.0 or 2.0")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject:
            raise ValueError("Object arrays cannot be loaded when allow_pickle=False")
        if any(size < 0 for size in shape):
            raise ValueError(f"{member} has a negative size in its shape {shape}")
        return file.tell() + math.prod(shape) * dtype.itemsize


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"
