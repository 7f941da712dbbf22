"""Tile sizes of the attention kernels, by head size and dtype, from measurements on an H200 (`benchmarks/tune.py`)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

#: In rows of up to this length, padding to whole tiles costs much, so tiles are narrow.
_SHORT = 256


class Tiles(NamedTuple):
    """Rows and keys of a tile, and how the compiler schedules it. Only the selection uses `depth`.

    `registers` are the most that a thread may have; 0: as many as the compiler wants. With fewer, more warps fit.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    depth: int = 0
    registers: int = 0


def forward_tiles(q: Tensor, k: Tensor, v: Tensor, is_lean: bool) -> Tiles:
    """Tiles of the forward. `is_lean`: it reads no mask and draws no noise, for which it would need more registers."""
    size = max(q.shape[-1], v.shape[-1])
    if q.element_size() == 4:
        return Tiles(32, 32, 4, 2) if size <= 64 else Tiles(32, 32, 4, 1)
    if size <= 64:
        return Tiles(64, 64, 4, 3, 0, 128 if is_lean else 0) if k.shape[2] > _SHORT else Tiles(128, 32, 4, 3)
    return Tiles(64, 32, 4, 3 if size <= 128 else 2)


def select_tiles(q: Tensor, k: Tensor, top: int) -> Tiles:
    """Tiles of the selection of the k largest."""
    if q.element_size() == 4:
        return Tiles(32, 32, 4, 1, 4)
    if k.shape[2] <= _SHORT:
        columns = 16
    else:
        columns = 64 if 64 < q.shape[-1] <= 128 else 32
    return Tiles(64, columns, 4, 3 if q.shape[-1] <= 128 else 2, 4)


def backward_tiles(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tiles, Tiles]:
    """Tiles of the gradient of queries, and of the gradient of keys."""
    size = max(q.shape[-1], v.shape[-1])
    if q.element_size() == 4:
        small = Tiles(32, 32, 4, 1) if size <= 64 else Tiles(32, 16, 4, 1)
        return small, small
    if size <= 64:
        return Tiles(64, 32, 4, 3), Tiles(64, 64, 4, 3)
    if size <= 128:
        return Tiles(64, 32, 4, 3), Tiles(32, 64, 4, 2)
    return Tiles(64, 32, 4, 1), Tiles(32, 32, 4, 1)


def largest_tile(q: Tensor, k: Tensor, v: Tensor) -> int:
    """The most rows or keys that a tile of forward, selection or backward has; all sizes divide it."""
    tiles = forward_tiles(q, k, v, True), select_tiles(q, k, 1), *backward_tiles(q, k, v)
    return max(max(tile.rows, tile.columns) for tile in tiles)


def pick_tiles(q: Tensor, k: Tensor) -> tuple[Tiles, Tiles]:
    """Tiles of `pick`, and of `recount`."""
    if q.element_size() == 4:
        return Tiles(32, 32, 4, 1, 3), Tiles(32, 32, 4, 1)
    columns = 64 if q.shape[-1] > 64 and k.shape[2] > _SHORT else 32
    return Tiles(64, columns, 4, 2, 3), Tiles(16, 256 if q.shape[-1] <= 128 else 128, 4, 1)


def amend_tiles() -> Tiles:
    """Tiles of the kernels that amend rows (`rows`) and keys (`columns`)."""
    return Tiles(8, 32, 2, 1)


def listed_tiles(q: Tensor) -> tuple[Tiles, Tiles]:
    """Tiles for listed rows: of the forward and the gradient of queries, and of the gradient of keys."""
    if q.element_size() == 4:
        return Tiles(32, 32, 4, 1), Tiles(32, 32, 4, 1)
    if q.shape[-1] <= 64:
        return Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2)
    return Tiles(64, 64, 4, 1), Tiles(32, 64, 4, 1)
