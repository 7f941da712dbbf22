# mypy: ignore-errors
"""The hash of `attentiondrop.hashing` as Triton functions, with exactly the same results."""

from __future__ import annotations

import triton
import triton.language as tl

from .cosine import cosine


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
def mix31(x):
    """The same on the low 31 bits."""
    x &= 0x7FFFFFFF
    x ^= x >> 16
    x = (x * 0x7FEB352D) & 0x7FFFFFFF
    x ^= x >> 15
    x = (x * 0x046CA68B) & 0x7FFFFFFF
    x ^= x >> 16
    return x


@triton.jit
def stream_key(seed_pointer, number):
    """The two words of the key of stream `number`. The pointer is that of the seed, a 0-dim int64 tensor."""
    seed = tl.load(seed_pointer).to(tl.uint64)
    low = seed.to(tl.uint32)
    high = (seed >> 32).to(tl.uint32)
    stream = number.to(tl.uint32)
    k0 = mix(low ^ mix(high + stream * 0x9E3779B1))
    k1 = mix(high ^ mix(k0 + stream * 0x85EBCA77 + 0x165667B1))
    return k0, k1


@triton.jit
def odd_word(k0, k1, position):
    """The word of a row at position `i`, counted over batch, heads and queries; of key `j` at `2^31 - 1 - j`."""
    x = mix31((position.to(tl.uint32) ^ (k0 >> 1)) + k1)
    x = mix31((x ^ (k1 >> 1)) + k0)
    return x * 2 + 1


@triton.jit
def vector_word(k0, k1, index):
    """The word of a sample or a head."""
    return mix(mix(index.to(tl.uint32) + k0) ^ k1)


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
    return radius * cosine(6.283185307179586 * to_uniform(second))
