"""Which logits are the largest: by NumPy where that is faster, and always as torch alone finds them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attentiondrop.torch.eager import regularisers


def by_torch(monkeypatch: pytest.MonkeyPatch, logits: Tensor, visible: Tensor | None, k: int) -> Tensor:
    with monkeypatch.context() as changed:
        changed.setattr(regularisers, "is_at_hand", lambda x: False)
        return regularisers.top_k(logits, visible, k)


def cases() -> list[Tensor]:
    torch.manual_seed(0)
    plain = torch.randn(2, 3, 7, 9)
    tied = plain.mul(2).round()
    nan, infinite = plain.clone(), plain.clone()
    nan[0, 0, 0, 4] = nan[1, 1, 1, :] = torch.nan
    # A row with NaN has one selected logit less than k, and a row with a tie one more.
    both = plain[:1, :1, :2].clone()
    both[0, 0, 0, 4] = torch.nan
    both[0, 0, 1, :2] = both[0, 0, 1].sort(descending=True).values[2]
    infinite[0, 0, 0, 4] = torch.inf
    infinite[0, 0, 1, :7] = -torch.inf
    infinite[0, 0, 2] = -torch.inf
    return [plain, plain.double(), tied, nan, both, infinite, torch.zeros(1, 1, 1, 4), torch.zeros(2, 0, 3, 4)]


@pytest.mark.parametrize(
    "logits", cases(), ids=["plain", "double", "tied", "nan", "both", "infinite", "zeros", "empty"]
)
def test_numpy_selects_what_torch_selects(monkeypatch: pytest.MonkeyPatch, logits: Tensor) -> None:
    for visible in (None, torch.rand(logits.shape) < 0.5, torch.zeros(logits.shape, dtype=torch.bool)):
        for k in (1, 2, 3, 4, 20):
            expected = by_torch(monkeypatch, logits, visible, k)
            assert torch.equal(regularisers.top_k(logits, visible, k), expected)
            dropped = torch.rand(logits.shape) < 0.9
            dropped = dropped if visible is None else dropped & visible
            kept = regularisers.without_emptying(dropped, logits, visible)
            softmax = regularisers.masked_softmax(logits, visible)
            with monkeypatch.context() as changed:
                changed.setattr(regularisers, "is_at_hand", lambda x: False)
                assert torch.equal(regularisers.without_emptying(dropped, logits, visible), kept)
                assert torch.equal(regularisers.masked_softmax(logits, visible).nan_to_num(), softmax.nan_to_num())


def test_numpy_is_used_for_few_logits_or_few_threads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    threads = [3]
    monkeypatch.setattr(regularisers, "top_k_without_ties", lambda shown, k: asked.append(shown.size))
    for size in (regularisers.FEW, regularisers.FEW + 1):
        regularisers.top_k(torch.randn(1, size), None, 3)
    assert asked == [regularisers.FEW]
    threads = [2]
    regularisers.top_k(torch.randn(1, regularisers.FEW + 1), None, 3)
    assert asked == [regularisers.FEW, regularisers.FEW + 1]
