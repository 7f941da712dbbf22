"""The bit map in which the forward of hard masking tells the backward what it dropped.

A tile of 16 rows and 16 keys takes 32 bytes, one for each lane of the warp that holds the tile in the backward. There a
lane has the keys g and g + 8 (g = lane // 4) of the rows 2t, 2t + 1, 2t + 8 and 2t + 9 (t = lane % 4). Tiles lie in the
order [head, row tile, key tile].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

#: Bytes of a tile.
TILE = 32


class Bit(NamedTuple):
    """A bit of a tile: its byte, and its place in the byte."""

    byte: int
    bit: int


def bit_of(row: int, key: int) -> Bit:
    """Where the map keeps a row and a key of a tile, each from 0 to 15."""
    return Bit(key % 8 * 4 + row % 8 // 2, row // 8 * 4 + key // 8 * 2 + row % 2)


def positions_of(byte: int) -> Iterator[tuple[int, int]]:
    """The row and the key of each bit of a byte, from the lowest bit."""
    g, t = divmod(byte, 4)
    for bit in range(8):
        yield bit // 4 * 8 + 2 * t + bit % 2, g + bit // 2 % 2 * 8


def bytes_of(heads: int, rows: int, keys: int) -> int:
    """The size of the map of `heads` heads in all."""
    return heads * -(-rows // 16) * -(-keys // 16) * TILE
