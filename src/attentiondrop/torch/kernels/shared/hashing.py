# mypy: ignore-errors
"""The hash of `attentiondrop.torch.draws` as Triton functions, with exactly the same results."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mix(x):
    """lowbias32 on unsigned words."""
    x = x.to(tl.uint32)
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def stream_key(seed_pointer, number):
    """The key of stream `number` of the call whose seed lies at the pointer (a 0-dim int64 tensor)."""
    seed = tl.load(seed_pointer).to(tl.uint64)
    low = seed.to(tl.uint32)
    high = (seed >> 32).to(tl.uint32)
    return mix(low ^ mix(high + number.to(tl.uint32) * 0x9E3779B1))


@triton.jit
def line_word(key, line):
    """The word of a row, counted over batch, heads and queries."""
    return mix(key + line.to(tl.uint32))


@triton.jit
def column_word(key, column):
    """The word of a key position."""
    return mix(mix(key ^ 0x85EBCA77) + column.to(tl.uint32))


@triton.jit
def joined(line, column):
    """The word of a logit, from two odd words."""
    return line * column


@triton.jit
def to_uniform(word):
    """The top 24 bits as a float32 in [0, 1)."""
    return (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def to_normal(word):
    """A standard normal from the word of a logit and a second word computed from it (Box and Muller)."""
    second = (word ^ 0x85EBCA77) * 0x9E3779B1
    second ^= second >> 15
    second *= 0x85EBCA77
    second ^= second >> 13
    # (n + 1) / 2^24 is never 0, so the logarithm is finite.
    radius = tl.sqrt(-2.0 * tl.log(to_uniform(word) + 5.9604644775390625e-08))
    return radius * tl.cos(6.283185307179586 * to_uniform(second))
