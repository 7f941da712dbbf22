"""One shape at growing lengths: how time and memory grow with N."""

from __future__ import annotations

from dataclasses import replace

from ..errors import bad_argument
from .shapes import Shape

#: The rows of the pictures: one plain row, one with dropout, flex_attention, the paper's listings, and ours.
LENGTH_ROWS = (
    "SDPA",
    "SDPA dropout 0.1",
    "flex_attention",
    "paper's*",
    "blur*",
    "hard(p=0.1,k=5)",
    "noise*",
    "dropkey*",
    "attndropout*",
)

#: Sizes on a GPU and on a CPU, and the longest length on each.
CUDA_SHAPE, CUDA_LONGEST = Shape(4, 16, 128, 64), 16384
CPU_SHAPE, CPU_LONGEST = Shape(1, 4, 64, 64), 1024


def growing(shape: Shape, longest: int) -> list[Shape]:
    """The shape at its own length, at twice that, and so on up to `longest`.

    >>> [shape.length for shape in growing(Shape(1, 1, 64, 8), 300)]
    [64, 128, 256]
    """
    if longest < 2 * shape.length:
        raise bad_argument("longest", f"at least twice the shortest length, {2 * shape.length}", longest)
    lengths = [shape.length]
    while 2 * lengths[-1] <= longest:
        lengths.append(2 * lengths[-1])
    return [replace(shape, length=length) for length in lengths]
