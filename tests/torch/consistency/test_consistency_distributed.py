"""Two processes on one machine (gloo): every mode under DistributedDataParallel."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run_two_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package")


def worker(rank: int, kind: str) -> None:
    """One rank. Every assertion here fails the test that started it."""
    from consistency_models import build, floats
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    import attentiondrop as ad
    from attentiondrop.torch import attach, consistency_loss

    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = build("encoder")
    attach(model, {"encoder.layers.3.*": "blur(sigma_max=2.0)+dropkey(p=0.4)"})
    wrapped = DistributedDataParallel(model)
    x = floats(2, 5, 16)  # the same on both ranks: only the draws differ
    labels = torch.arange(10) % 5

    for mode in ("batch", "sequential", "shared"):
        losses, gradients = [], []
        for each in (model, wrapped):
            model.zero_grad()
            torch.manual_seed(0)
            result = consistency_loss(each, x, lambda y: cross_entropy(y.flatten(0, 1), labels), ad.Consistency(), mode)
            result.loss.backward()
            losses.append(result.loss.detach())
            gradients.append(model.head.weight.grad.clone())
        assert torch.equal(*losses)
        alone, together = gradients
        dist.all_reduce(alone)
        torch.testing.assert_close(together, alone / 2)
        views = torch.stack(result.outputs).detach()
        both = [torch.zeros_like(views) for _ in range(2)]
        dist.all_gather(both, views)
        for mine in both[0]:
            for theirs in both[1]:
                assert not torch.allclose(mine, theirs), f"ranks share a view with mode={mode}"
    dist.destroy_process_group()


def test_two_ranks() -> None:
    run_two_ranks(__file__, "ddp")
