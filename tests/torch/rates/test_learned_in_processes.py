"""Learned rates in two processes (gloo): their gradients can be averaged, and it is noticed if they are not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run_two_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package")


def worker(rank: int, kind: str) -> None:
    """One rank. Every assertion here fails the test that started it."""
    import warnings

    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import attentiondrop as ad
    from attentiondrop.torch import attach
    from attentiondrop.torch.attach.reminders import PATIENCE

    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    attachment = attach(model, ad.BlurSmoothing(sigma_max=ad.Learnable(0.5, high=2.0, heads=2)))
    wrapped = DistributedDataParallel(model)
    optimiser = torch.optim.SGD([*model.parameters(), *attachment.parameters()], lr=0.1)
    (rate,) = attachment.parameters()
    x = torch.randn(4, 7, 16)[2 * rank :][:2]

    def of_ranks(mine: torch.Tensor) -> list[torch.Tensor]:
        both = [torch.zeros_like(mine) for _ in range(2)]
        dist.all_gather(both, mine.detach())
        return both

    def backward() -> None:
        optimiser.zero_grad()
        wrapped(x).square().sum().backward()

    if kind == "averaged":
        for _ in range(3):
            backward()
            own = of_ranks(rate.grad)
            assert not torch.equal(*own)
            attachment.average_gradients()
            torch.testing.assert_close(rate.grad, (own[0] + own[1]) / 2)
            optimiser.step()
        assert torch.equal(*of_ranks(rate)) and bool((rate != rate[0]).any())
        backward()
        if rank == 1:
            rate.grad = None  # a process may leave the site out
        own = of_ranks(torch.zeros_like(rate) if rate.grad is None else rate.grad)
        attachment.average_gradients()
        torch.testing.assert_close(rate.grad, own[0] / 2)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ad.AttentionDropWarning)
        for _ in range(PATIENCE["processes"] + 2):
            backward()
            rate.data.add_(1e-6)  # as an optimiser does
    messages = [str(one.message) for one in found if one.category is ad.AttentionDropWarning]
    if kind == "averaged":
        assert not messages, messages
    else:
        assert len(messages) == 1 and "is learned in 2 processes" in messages[0], messages
        assert "attachment.average_gradients()" in messages[0]
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["averaged", "forgotten"])
def test_two_ranks(kind: str) -> None:
    run_two_ranks(__file__, kind)
