"""The hash: its definition, what it promises exactly, and how well it mixes.

The definition is written here once more, on 64-bit integers and by the formulas of the docstring, and so are the
inverses of its steps. The draws that follow from the words are tested in `tests/torch/test_draws.py`.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from attentiondrop.hashing import Key, line_and_column_words, mix, stream_key, vector_words

Numbers = npt.NDArray[np.uint64]
SEEDS = (0, 1, 3, 2**32, 0x7EDCBA9876543210, 2**63 - 1)
STREAMS = (0, 1, 7, 2**20)


# --- the definition, once more ---------------------------------------------------------------------------------------
def lowbias(x: Numbers, bits: int) -> Numbers:
    multipliers = (0x7FEB352D, 0x846CA68B)
    modulus = np.uint64(2**bits)
    x = x % modulus
    for shift, multiplier in zip((16, 15), multipliers, strict=True):
        x = (x ^ (x // np.uint64(2**shift))) * np.uint64(multiplier) % modulus
    return x ^ (x // np.uint64(2**16))


def defined_key(seed: Numbers, stream: int) -> tuple[Numbers, Numbers]:
    low, high = seed % np.uint64(2**32), seed // np.uint64(2**32)
    k0 = lowbias(low ^ lowbias(high + np.uint64(stream * 0x9E3779B1 % 2**32), 32), 32)
    k1 = lowbias(high ^ lowbias(k0 + np.uint64((stream * 0x85EBCA77 + 0x165667B1) % 2**32), 32), 32)
    return k0, k1


def defined_place(k0: Numbers, k1: Numbers, i: Numbers) -> Numbers:
    two = np.uint64(2)
    return lowbias((lowbias((i ^ (k0 // two)) + k1, 31) ^ (k1 // two)) + k0, 31)


def numbers(*values: int) -> Numbers:
    return np.array(values, dtype=np.uint64)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_words_are_those_of_the_definition(seed: int) -> None:
    lines, columns = 300, 70
    for stream in STREAMS:
        key = stream_key(seed, stream)
        k0, k1 = defined_key(numbers(seed), stream)
        assert key == (k0[0], k1[0])
        words = line_and_column_words(key, lines, columns)
        assert words.dtype == np.uint32
        i, j = (np.arange(n, dtype=np.uint64) for n in (lines, columns))
        assert np.array_equal(words[:lines], 2 * defined_place(k0, k1, i) + 1)
        assert np.array_equal(words[lines:], 2 * defined_place(k0, k1, 2**31 - 1 - j) + 1)
        assert np.array_equal(vector_words(key, 20), lowbias(lowbias(i[:20] + k0, 32) ^ k1, 32))


def test_words_as_numbers() -> None:
    """The draws of a seed do not change from release to release: a change here changes the results of every user."""
    key = stream_key(0x7EDCBA9876543210, 2)
    assert [hex(word) for word in key] == KEY
    assert [hex(word) for word in line_and_column_words(key, 3, 2)] == WORDS
    assert [hex(word) for word in vector_words(key, 2)] == VECTOR


KEY = ["0xf401736b", "0xc0898004"]
WORDS = ["0x5d02dd13", "0xe18f3b67", "0xb44c32f", "0xa5bd4de1", "0x8e1cd759"]
VECTOR = ["0xc71e59f6", "0xab039621"]


# --- what holds exactly ----------------------------------------------------------------------------------------------
def unshifted(x: Numbers, shift: int) -> Numbers:
    """The inverse of `x ^ (x >> shift)`, for a shift of at least a third of the bits."""
    once = x ^ (x >> np.uint64(shift))
    return once ^ (once >> np.uint64(2 * shift))


def unmixed(x: Numbers, bits: int) -> Numbers:
    x = unshifted(x, 16)
    for shift, multiplier in ((15, 0x846CA68B), (16, 0x7FEB352D)):
        x = unshifted(x * np.uint64(pow(multiplier, -1, 2**bits)) % np.uint64(2**bits), shift)
    return x


def test_a_seed_can_be_computed_back_from_the_key() -> None:
    """So calls with different seeds have different keys."""
    seeds = np.random.default_rng(0).integers(0, 2**63, 1000, dtype=np.uint64)
    for stream in STREAMS:
        k0, k1 = (np.array(x, dtype=np.uint64) for x in zip(*(stream_key(int(s), stream) for s in seeds), strict=True))
        high = unmixed(k1, 32) ^ lowbias(k0 + np.uint64((stream * 0x85EBCA77 + 0x165667B1) % 2**32), 32)
        low = unmixed(k0, 32) ^ lowbias(high + np.uint64(stream * 0x9E3779B1 % 2**32), 32)
        assert np.array_equal(high * np.uint64(2**32) + low, seeds)


def test_a_position_can_be_computed_back_from_its_word() -> None:
    """So positions of a call have different words."""
    rng = np.random.default_rng(1)
    size, limit = 50_000, np.uint64(2**31)
    for k0, k1 in rng.integers(0, 2**32, (20, 2), dtype=np.uint64):
        key = Key(int(k0), int(k1))
        words = line_and_column_words(key, size, size).astype(np.uint64)
        x = unmixed(words // np.uint64(2), 31)
        x = unmixed(((x + limit * np.uint64(2) - k0) % limit) ^ (k1 // np.uint64(2)), 31)
        x = ((x + limit * np.uint64(2) - k1) % limit) ^ (k0 // np.uint64(2))
        assert np.array_equal(x, np.concatenate([np.arange(size), 2**31 - 1 - np.arange(size)]))


def test_no_two_rows_or_keys_of_a_large_call_share_a_word() -> None:
    """Exactly so. Random words out of 2^31 would have 85 pairs of equal ones."""
    for seed in (0, 12345678901234567):
        words = line_and_column_words(stream_key(seed, 0), 605_000, 4096)
        assert (words % 2 == 1).all()
        words.sort()
        assert (words[1:] != words[:-1]).all()


# --- how well it mixes -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("changed", ["position", "k0", "k1"])
def test_every_bit_that_goes_in_changes_every_bit_that_comes_out_half_of_the_time(changed: str) -> None:
    """At most 32 x 31 counts of 2^14 coins each, six standard deviations: a fair hash fails once in 500,000 runs."""
    rng = np.random.default_rng(2)
    size = 2**14
    given = {name: rng.integers(0, 2**32, size, dtype=np.uint64) for name in ("k0", "k1", "position")}
    given["position"] %= np.uint64(2**31)
    before = defined_place(given["k0"], given["k1"], given["position"])
    for bit in range(31 if changed == "position" else 32):
        other = given | {changed: given[changed] ^ np.uint64(1 << bit)}
        flipped = before ^ defined_place(other["k0"], other["k1"], other["position"])
        counts = ((flipped[:, None] >> np.arange(31, dtype=np.uint64)) & np.uint64(1)).sum(axis=0)
        assert np.abs(counts - size / 2).max() < 6 * np.sqrt(size / 4), bit


def test_streams_of_a_call_have_different_keys() -> None:
    """Exactly so: `mix` and the multiplication of the stream number by an odd constant can be undone."""
    for seed in SEEDS:
        assert len({stream_key(seed, stream).k0 for stream in itertools.chain(range(1000), [2**20])}) == 1001
    assert len({mix(x) for x in range(1000)}) == 1000
