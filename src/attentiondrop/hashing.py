"""The hash behind all draws, on Python integers and on NumPy arrays. torch, Triton and Keras compute the same words.

A draw is a hash of (seed of the call, stream, position). A stream is one regulariser of the call. All numbers are
32-bit words with wrap-around, since JAX has no 64-bit integers by default::

    mix(x)       = lowbias32: x ^= x >> 16; x *= 0x7FEB352D; x ^= x >> 15; x *= 0x846CA68B; x ^= x >> 16
    mix31(x)     = the same on 31 bits: x ^= x >> 16; x *= 0x7FEB352D; x ^= x >> 15; x *= 0x046CA68B; x ^= x >> 16

    k0           = mix(low word of seed ^ mix(high word of seed + stream * 0x9E3779B1))
    k1           = mix(high word of seed ^ mix(k0 + stream * 0x85EBCA77 + 0x165667B1))

    place(i)     = mix31((mix31((i ^ (k0 >> 1)) + k1) ^ (k1 >> 1)) + k0)       sums and products modulo 2^31
    line(i)      = 2 * place(i) + 1                 i: a row, counted over batch, heads and queries
    column(j)    = 2 * place(2^31 - 1 - j) + 1      j: a key
    joined(i, j) = line(i) * column(j)              one for each logit

    vector(i)    = mix(mix(i + k0) ^ k1)            where there is one number for each sample, head or call
    uniform      = top 24 bits / 2^24

For a fixed stream, the seed can be computed back from (k0, k1): two seeds never share a key. For a fixed key, `place`
is a permutation of the 31-bit numbers, since each step can be undone: as long as a call has no more than 2^31 rows and
keys, its row words and key words all differ. They are odd, so they lose nothing in a product, and no product is 0.

Joining by a product is one multiplication at each logit, which is what a fused kernel can afford, and it is strong:
over random rows, the pair (r * c1, r * c2) fills the square like a lattice of 2^31 points. (An exclusive or followed by
a multiplication costs one operation more, and leaves clear correlations between some columns.)
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: Multipliers of the number of a stream, and what keeps the two words of a key apart.
GOLDEN = 0x9E3779B1
PRIME = 0x85EBCA77
SHIFT = 0x165667B1
#: Multipliers of `mix`, and the second one of `mix31` (the first one is the same).
MIX_1 = 0x7FEB352D
MIX_2 = 0x846CA68B
MIX31_2 = MIX_2 & 0x7FFFFFFF

WORD = 0xFFFFFFFF
MASK31 = 0x7FFFFFFF

Words32 = npt.NDArray[np.uint32]


class Key(NamedTuple):
    """The key of a stream of one call: two 32-bit words."""

    k0: int
    k1: int


def mix(x: int) -> int:
    """lowbias32."""
    x ^= x >> 16
    x = x * MIX_1 & WORD
    x ^= x >> 15
    x = x * MIX_2 & WORD
    return x ^ x >> 16


def stream_key(seed: int, stream: int) -> Key:
    """The key of a stream of the call with this 64-bit seed."""
    low, high = seed & WORD, seed >> 32 & WORD
    k0 = mix(low ^ mix(high + stream * GOLDEN & WORD))
    return Key(k0, mix(high ^ mix(k0 + stream * PRIME + SHIFT & WORD)))


def line_and_column_words(key: Key, lines: int, columns: int) -> Words32:
    """The words of all rows, then those of all keys."""
    # Line and column words come from one permutation, so one pass makes both.
    x = np.bitwise_xor(_places(lines, columns), np.uint32(key.k0 >> 1))
    space = np.empty_like(x)
    np.add(x, np.uint32(key.k1), x)
    _mix31(x, space)
    np.bitwise_xor(x, np.uint32(key.k1 >> 1), x)
    np.add(x, np.uint32(key.k0), x)
    _mix31(x, space)
    np.left_shift(x, _ONE, x)
    np.bitwise_or(x, _ONE, x)
    return x


def vector_words(key: Key, length: int) -> Words32:
    """One word for each of `length` samples or heads."""
    if length <= 8:  # faster than NumPy
        return np.array([mix(mix(i + key.k0 & WORD) ^ key.k1) for i in range(length)], dtype=np.uint32)
    x = np.arange(length, dtype=np.uint32) + np.uint32(key.k0)
    return _mix32(_mix32(x) ^ np.uint32(key.k1))


def _mix32(x: Words32) -> Words32:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(MIX_1)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(MIX_2)
    return x ^ (x >> np.uint32(16))


def uniforms(words: Words32) -> npt.NDArray[np.float32]:
    """The top 24 bits of each word as a number in [0, 1)."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def limit_of(rate: float) -> int:
    """The largest word whose uniform is below `rate`, as float32 numbers are compared; 0 if there is none.

    A word of a logit is odd, so it is never 0.
    """
    steps = math.ceil(float(np.float32(rate)) * 2**24)
    return (min(steps, 2**24) << 8) - 1 if steps > 0 else 0


def _places(lines: int, columns: int) -> Words32:
    # Large ones are not kept: making them takes little of the time of such a call, and they would fill the memory.
    return _places_once(lines, columns) if lines + columns <= 2**16 else _new_places(lines, columns)


def _new_places(lines: int, columns: int) -> Words32:
    places = np.concatenate(
        [np.arange(lines, dtype=np.uint32), MASK31 - np.arange(columns, dtype=np.uint32)], dtype=np.uint32
    )
    places.setflags(write=False)  # calls of one shape share them
    return places


_places_once = functools.lru_cache(maxsize=64)(_new_places)


# 0-dim arrays: NumPy takes longer to read a scalar.
_ONE, _15, _16, _MASK31, _M1, _M2 = (
    np.array(number, dtype=np.uint32) for number in (1, 15, 16, MASK31, MIX_1, MIX31_2)
)


def _mix31(x: Words32, space: Words32) -> None:
    """`mix31` of the low 31 bits, in place. New memory for each step would take longer than the arithmetic."""
    np.bitwise_and(x, _MASK31, x)
    np.bitwise_xor(x, np.right_shift(x, _16, space), x)
    np.multiply(x, _M1, x)
    np.bitwise_and(x, _MASK31, x)
    np.bitwise_xor(x, np.right_shift(x, _15, space), x)
    np.multiply(x, _M2, x)
    np.bitwise_and(x, _MASK31, x)
    np.bitwise_xor(x, np.right_shift(x, _16, space), x)
