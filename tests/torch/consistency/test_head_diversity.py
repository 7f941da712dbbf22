from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attention, head_diversity_loss
from attentiondrop.torch.call.leaves import LogitShape, draw_for
from attentiondrop.torch.draws import Stream


@pytest.mark.parametrize("p", [0.0, 0.1, 0.25, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("heads", [1, 4, 6])
@pytest.mark.filterwarnings("ignore::attentiondrop.AttentionDropWarning")
def test_stratified_counts_are_floor_or_ceiling(p: float, heads: int) -> None:
    spec = ad.HardMasking(p=p, k=3, heads="stratified")
    draws = draw_for(spec, Stream(torch.tensor(7), 0), LogitShape(4, heads, 500, 20))
    assert draws.shape == (4, heads, 500, 3)
    counts = (draws < p).sum(1)
    exact = p * heads
    assert set(counts.unique().tolist()) <= {int(exact // 1), int(-(-exact // 1))}
    # On average p, for every head: 6000 decisions, 4 standard deviations.
    rates = (draws < p).float().mean((0, 2, 3))
    assert rates.tolist() == pytest.approx([p] * heads, abs=4 * (p * (1 - p) / 6000) ** 0.5 + 1e-6)


def test_which_heads_drop_together_is_random() -> None:
    """With p = 1/2 of 4 heads, each of the 6 pairs drops a sixth of the time."""
    spec = ad.HardMasking(p=0.5, k=1, heads="stratified")
    dropped = draw_for(spec, Stream(torch.tensor(3), 0), LogitShape(8, 4, 1000, 10))[..., 0] < 0.5
    shares = [(dropped[:, a] & dropped[:, b]).float().mean().item() for a, b in itertools.combinations(range(4), 2)]
    assert shares == pytest.approx([1 / 6] * 6, abs=4 * (5 / 36 / 8000) ** 0.5)


def test_ranks_are_told_from_the_largest() -> None:
    """The same rank of different heads is at different keys: drops are spread over heads by rank, not by key."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 4, 6, 8)
    out = attention(q, k, k, ad.HardMasking(p=0.5, k=2, heads="stratified"))
    assert out.shape == (3, 4, 6, 8)
    with pytest.raises(ad.BackendError, match="stratified draws belong to ranks"):
        attention(q, k, k, ad.HardMasking(p=0.5, k=2, heads="stratified"), backend="fused")
    with pytest.raises(
        ad.AttentionDropError, match="heads: expected one of 'independent', 'stratified', received 'same'"
    ):
        ad.HardMasking(heads="same")


def test_diversity_is_the_mean_cosine_of_all_pairs() -> None:
    weights = torch.rand(2, 5, 7, 9, dtype=torch.float64, requires_grad=True)
    pairs = [F.cosine_similarity(weights[:, a], weights[:, b], dim=-1) for a, b in itertools.combinations(range(5), 2)]
    torch.testing.assert_close(head_diversity_loss(weights), torch.stack(pairs).mean())
    visible = torch.rand(2, 7) < 0.5
    expected = torch.stack(pairs).mean(0)[visible].mean()
    torch.testing.assert_close(head_diversity_loss(weights, visible), expected)
    assert torch.autograd.gradcheck(head_diversity_loss, weights)


def test_diversity_of_weights_in_half_precision_is_computed_wider() -> None:
    weights = torch.rand(2, 5, 7, 9).bfloat16()
    torch.testing.assert_close(head_diversity_loss(weights), head_diversity_loss(weights.float()), rtol=0, atol=0)


def test_rows_that_see_nothing_and_bad_shapes() -> None:
    weights = torch.zeros(1, 2, 3, 4, requires_grad=True)
    loss = head_diversity_loss(weights)
    loss.backward()
    assert loss == 0 and weights.grad is not None and weights.grad.isfinite().all()
    assert head_diversity_loss(torch.rand(1, 2, 3, 4), visible=torch.zeros(3, dtype=torch.bool)) == 0
    with pytest.raises(ad.ShapeError, match=r"weights: expected \[..., heads, queries, keys\] with 2 heads or more"):
        head_diversity_loss(torch.rand(1, 3, 4))


def test_training_with_the_loss_pulls_heads_apart() -> None:
    torch.manual_seed(0)
    logits = (torch.randn(1, 1, 6, 8) + 0.1 * torch.randn(1, 4, 6, 8)).requires_grad_()
    optimiser = torch.optim.SGD([logits], lr=5.0)
    first = head_diversity_loss(logits.softmax(-1)).item()
    for _ in range(100):
        optimiser.zero_grad()
        head_diversity_loss(logits.softmax(-1)).backward()
        optimiser.step()
    assert head_diversity_loss(logits.softmax(-1)).item() < first - 0.2
