"""The hash in Triton: bit for bit that of `attentiondrop.hashing`, and exact limits for its words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from attentiondrop import hashing
from attentiondrop.torch.draws import Stream

triton = pytest.importorskip("triton")

from attentiondrop.torch.kernels.shared.hashing import stream_key, vector_word  # noqa: E402
from attentiondrop.torch.kernels.shared.words import words_kernel  # noqa: E402

tl = triton.language
SEEDS = [0, 3, 0x7EDCBA9876543210, 2**63 - 1]


@triton.jit
def vectors_kernel(seed, out, stream, BLOCK: tl.constexpr):
    k0, k1 = stream_key(seed, stream)
    place = tl.arange(0, BLOCK)
    tl.store(out + place, vector_word(k0, k1, place).to(tl.int32, bitcast=True))


def tables(seed: int, rates: list[float], lines: int, columns: int, device: str) -> tuple[Tensor, Tensor]:
    """Words [4, lines + columns] and limits [4] of the streams 0, 1, 7 and 2^20."""
    words = torch.empty(4, lines + columns, dtype=torch.int32, device=device)
    limits = torch.empty(4, dtype=torch.int32, device=device)
    words_kernel[(triton.cdiv(lines + columns, 128), 4)](
        torch.tensor(seed, device=device), None, words, limits, torch.empty(4, device=device), 0, 1, 7, 2**20, *rates,
        lines, columns, lines + columns, 1, VECTORS=0, HAS_GATES=False, BLOCK=128,
    )  # fmt: skip
    return words.cpu(), limits.cpu()


@pytest.mark.parametrize("seed", SEEDS)
def test_words_are_those_of_the_hash(device: str, seed: int) -> None:
    words, _ = tables(seed, [0.1] * 4, 150, 33, device)
    for slot, stream in enumerate((0, 1, 7, 2**20)):
        expected = hashing.line_and_column_words(hashing.stream_key(seed, stream), 150, 33)
        assert np.array_equal(words[slot].numpy().view(np.uint32), expected)


def test_words_of_columns(device: str) -> None:
    """Slots 1 and 2 have key words for each head, and rows of 1. Slot 0 has the key words of all heads, for each.

    In slot 2, blocks of five keys have one word.
    """
    lines, columns, heads = 150, 33, 6
    total = lines + heads * columns
    words = torch.empty(4, total, dtype=torch.int32, device=device)
    rest = torch.empty(4, dtype=torch.int32, device=device), torch.empty(4, device=device)
    words_kernel[(triton.cdiv(total, 128), 4)](
        torch.tensor(3, device=device), None, words, *rest, 0, 1, 7, -1, 0.1, 0.1, 0.1, 0.1, lines, columns, total,
        5, VECTORS=6, HAS_GATES=False, BLOCK=128,
    )  # fmt: skip
    found = words.cpu().numpy().view(np.uint32)
    shared = hashing.line_and_column_words(hashing.stream_key(3, 0), lines, columns)
    assert np.array_equal(found[0], np.concatenate([shared[:lines], np.tile(shared[lines:], heads)]))
    assert (found[1:3, :lines] == 1).all()
    own = hashing.vector_words(hashing.stream_key(3, 1), heads * columns)
    assert np.array_equal(found[1, lines:], own | 1) and (own % 2 == 0).any()
    own = hashing.vector_words(hashing.stream_key(3, 7), heads * columns).reshape(heads, columns)
    assert np.array_equal(found[2, lines:].reshape(heads, columns), own[:, np.arange(columns) // 5 * 5] | 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_vectors_are_those_of_the_hash(device: str, seed: int) -> None:
    out = torch.empty(16, dtype=torch.int32, device=device)
    for stream in (0, 5):
        vectors_kernel[(1,)](torch.tensor(seed, device=device), out, stream, BLOCK=16)
        expected = hashing.vector_words(hashing.stream_key(seed, stream), 16)
        assert np.array_equal(out.cpu().numpy().view(np.uint32), expected)


def test_a_limit_decides_what_the_uniform_decides(device: str) -> None:
    rates = [0.0, 2.0**-24, 0.1, 1.0]
    words, limits = tables(5, rates, 400, 300, device)
    for slot, stream in enumerate((0, 1, 7, 2**20)):
        line, column = words[slot, :400, None], words[slot, 400:]
        joined = (line * column).numpy().view(np.uint32)
        uniform = Stream(torch.tensor(5), stream).uniforms(1, 1, 400, 300)[0, 0]
        dropped = torch.from_numpy(joined <= limits.numpy().view(np.uint32)[slot])
        assert torch.equal(dropped, uniform < torch.tensor(rates[slot]))
