# mypy: ignore-errors
"""The words of all rows and keys of a call, and the limits they are compared with. Computed once, read by every tile.

A tile of logits needs one word for each of its rows and columns. Many threads use the same row or column, so computing
the words in the tiles would repeat the work many times. A table of (rows + columns) words is cheap.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .hashing import odd_word, stream_key, vector_word


@triton.jit(do_not_specialize=["stream_0", "stream_1", "stream_2", "stream_3", "lines", "columns", "total"])
def words_kernel(
    seed_pointer,
    gates_pointer,
    words_pointer,
    limits_pointer,
    factors_pointer,
    stream_0,
    stream_1,
    stream_2,
    stream_3,
    rate_0,
    rate_1,
    rate_2,
    rate_3,
    lines,
    columns,
    total,
    span,
    VECTORS: tl.constexpr,
    HAS_GATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (i, slot) writes a block of the slot's odd words: first those of all rows, then those of all keys.

    VECTORS has a bit for each slot that decides once for each (sample, head, key): its rows have the word 1, and each
    (sample, head) has key words of its own. Then there are as many copies of the key words of the other slots. In slot
    2, blocks of `span` keys have the word of their first key.
    """
    slot = tl.program_id(1)
    stream = tl.where(slot == 0, stream_0, tl.where(slot == 1, stream_1, tl.where(slot == 2, stream_2, stream_3)))
    rate = tl.where(slot == 0, rate_0, tl.where(slot == 1, rate_1, tl.where(slot == 2, rate_2, rate_3)))
    if HAS_GATES:
        rate = rate * tl.load(gates_pointer + slot)
    if stream >= 0:
        k0, k1 = stream_key(seed_pointer, stream)
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        key = tl.maximum(place - lines, 0).to(tl.int32)
        column = key
        if VECTORS != 0:
            column = key % columns
        behind = column % tl.where(slot == 2, span, 1)
        # The positions of keys are counted from the end.
        word = odd_word(k0, k1, tl.where(place < lines, place, 0x7FFFFFFF - (column - behind)))
        if (VECTORS >> slot) & 1:
            # A uniform is made of the top 24 bits of a word, so the last bit may be set: limits need odd words.
            word = tl.where(place < lines, 1, vector_word(k0, k1, key - behind) | 1).to(tl.uint32)
        tl.store(words_pointer + slot.to(tl.int64) * total + place, word.to(tl.int32, bitcast=True), mask=place < total)
    if tl.program_id(0) == 0:
        # `uniform < p`, written for words: the uniform is the top 24 bits of the word. A word is odd, so it is never 0,
        # and limit 0 drops nothing. At p = 1 the limit wraps around to the largest word.
        steps = tl.ceil(rate * 16777216.0).to(tl.int32)
        limit = tl.where(steps > 0, (steps.to(tl.uint32) << 8) - 1, 0)
        tl.store(limits_pointer + slot, limit.to(tl.int32, bitcast=True))
        # Slot 0 is noise, in units of log2. The other slots drop with a rate; their factor scales up what is kept.
        factor = tl.where(slot == 0, rate * 1.4426950408889634, 1.0 / tl.maximum(1.0 - rate, 5.9604644775390625e-08))
        tl.store(factors_pointer + slot, factor)
