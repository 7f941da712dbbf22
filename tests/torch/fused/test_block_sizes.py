"""Blocks of rows: which part of a problem each one holds, and how much memory it takes."""

from __future__ import annotations

import pytest
import torch
from largest_tensor import Largest

from attentiondrop.torch.call.decisions import Decisions
from attentiondrop.torch.call.leaves import DROPOUT_STREAM, LogitShape
from attentiondrop.torch.draws import Stream, Words
from attentiondrop.torch.fused import row_blocks


def test_slices_of_draws() -> None:
    stream = Stream(torch.tensor(7), 3)
    shape = (2, 3, 50, 41)
    words = stream.words(*shape)
    for first, count in ((0, 50), (7, 20), (49, 1)):
        part = Words(words.line[1:, 1:, first : first + count], words.column[:23])
        cut = (slice(1, 2), slice(1, 3), slice(first, first + count), slice(23))
        assert torch.equal(part.uniforms(), stream.uniforms(*shape)[cut])
        assert torch.equal(part.normals(), stream.normals(*shape)[cut])
    indices = torch.randint(0, 41, (2, 3, 50, 4))
    chosen = Words(words.line, words.column[indices]).uniforms()
    assert torch.equal(chosen, stream.uniforms(*shape).gather(-1, indices))


def test_blocks_cover_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for shape, group in ((LogitShape(3, 6, 7, 5), 2), (LogitShape(3, 6, 7, 5), 1), (LogitShape(1, 4, 1, 30), 4)):
        for budget in (1, 12, 36, 80, 110, 250, 440, 10**6):
            monkeypatch.setattr(row_blocks, "BUDGET", budget)
            count = torch.zeros(shape, dtype=torch.int32)
            for block in row_blocks.blocks(shape, group, False):
                part = block.pairs(count)
                assert part.numel() <= max(budget, shape.columns)
                assert part.shape[1] == 1 or part.shape[1] % group == 0
                part += 1
            assert (count == 1).all(), (shape, budget)


@pytest.mark.parametrize("is_causal", [False, True])
def test_no_tensor_is_larger_than_the_budget(is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "BUDGET", 2**18)
    n = 2048
    q, k, v, grad = torch.randn(4, 1, 1, n, 16)
    visible = torch.rand(1, 1, 1, n) < 0.9
    visible[..., 0] = True
    rates, streams = [0.5, 0.1, 0.1, 0.1], [0, 1, 2, DROPOUT_STREAM]
    call = Decisions(visible, None, torch.tensor(3), None, rates, streams, "zero", 5, is_causal, 0.25)
    with Largest() as found:
        row_blocks.blockwise_forward(q, k, v, call)
        row_blocks.blockwise_backward(grad, q, k, v, call)
    assert 2**17 < found.elements <= 2**18
