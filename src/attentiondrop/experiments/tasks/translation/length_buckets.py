"""Batches by subwords: sentences of similar length go together, and batches have few different shapes.

A bucket holds the sentences up to some length. All its batches have the same shape: as many rows as fit into the batch
size, padded to that length. So a step can be captured once for each bucket and replayed. What does not fill a batch of
its bucket moves on to the next one. The last batch of all is filled up with rows that do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import bad_argument

#: The number of rows in a batch is a multiple of this, so that processes and accumulated parts can share it.
ROWS = 8
#: The row of a batch that is filled up.
NOBODY = -1

Numbers = NDArray[np.int64]


class Planned(NamedTuple):
    """One batch: the numbers of its sentences, and the length that they are padded to."""

    members: Numbers
    length: int


def edges(longest: int) -> list[int]:
    """The lengths of the buckets: steps of 8, and wider ones for long sentences.

    >>> edges(50), edges(200)[-3:]
    ([8, 16, 24, 32, 40, 48, 56], [160, 192, 224])
    """
    found, edge = list[int](), 0
    while edge < longest:
        edge += 8 if edge < 64 else 16 if edge < 128 else 32 if edge < 512 else 128
        found.append(edge)
    return found


def rows(length: int, batch_size: int) -> int:
    """How many sentences of this padded length a batch has.

    >>> rows(16, 1000), rows(24, 1000)
    (56, 40)
    """
    if batch_size < ROWS * length:
        raise bad_argument(
            "training.batch_size",
            f"at least {ROWS * length} subwords, {ROWS} sentences of the longest bucket of {length}",
            batch_size,
        )
    return batch_size // length // ROWS * ROWS


def shapes(lengths: Numbers, batch_size: int) -> list[tuple[int, int]]:
    """The shapes (rows, length) of all batches of an epoch. All epochs have the same."""
    return [(len(batch.members), batch.length) for batch in _filled(lengths, batch_size, np.arange(len(lengths)))]


def plan(lengths: Numbers, batch_size: int, rng: np.random.Generator) -> list[Planned]:
    """The batches of one epoch, in random order, each with random sentences of its bucket."""
    batches = _filled(lengths, batch_size, rng.permutation(len(lengths)))
    return [batches[place] for place in rng.permutation(len(batches))]


def _filled(lengths: Numbers, batch_size: int, order: Numbers) -> list[Planned]:
    """Batches of consecutive sentences of `order`, bucket by bucket."""
    steps = edges(int(lengths.max()))
    bucket = np.searchsorted(steps, lengths[order])
    batches, left = list[Planned](), np.empty(0, np.int64)
    for number, length in enumerate(steps):
        members = np.concatenate([left, order[bucket == number]])
        size = rows(length, batch_size)
        full = len(members) // size * size
        batches += [Planned(part, length) for part in members[:full].reshape(-1, size)]
        left = members[full:]
    if len(left):
        filler = np.full(size - len(left), NOBODY)
        batches.append(Planned(np.concatenate([left, filler]), length))
    return batches


def in_order(lengths: Numbers, batch_size: int) -> list[Numbers]:
    """Batches of at most `batch_size` sentences, sorted by length, for evaluation."""
    order = np.argsort(lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def share(batches: Sequence[Numbers], rank: int, world: int) -> list[Numbers | None]:
    """Every `world`-th batch. Batches stay whole, so their scores are the same with any number of processes.

    All ranks get the same number, since processes may wait for each other in every batch; None stands for no batch.

    >>> batches = [np.array([number]) for number in range(3)]
    >>> share(batches, 0, 2), share(batches, 1, 2)
    ([array([0]), array([2])], [array([1]), None])
    """
    mine: list[Numbers | None] = list(batches[rank::world])
    return mine + [None] * (-(-len(batches) // world) - len(mine))
