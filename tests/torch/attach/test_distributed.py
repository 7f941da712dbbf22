"""Two processes on one machine (gloo): DDP and FSDP keep working, and ranks never share draws."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run_two_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package")


def worker(rank: int, kind: str) -> None:
    """One rank. Every assertion here fails the test that started it."""
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import attentiondrop as ad
    from attentiondrop.torch import attach, attention
    from attentiondrop.torch.random import draw_seed

    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    seed = draw_seed(torch.zeros(1))
    seeds = [torch.zeros_like(seed) for _ in range(2)]
    dist.all_gather(seeds, seed)
    assert not torch.equal(*seeds), "ranks that were seeded alike share their draws"
    q = torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(0))
    given = attention(q, q, q, ad.DropKey(0.4), generator=torch.Generator().manual_seed(5))
    both = [torch.zeros_like(given) for _ in range(2)]
    dist.all_gather(both, given)
    assert torch.equal(*both), "an explicit generator is used as it is"

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model: nn.Module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    keys = list(model.state_dict())
    attachment = attach(model, "hard(p=0.4,k=3)+blur(sigma_max=1.0)")
    if kind == "ddp":
        wrapped: nn.Module = DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for block in model.layers:
            fully_shard(block.self_attn)
            fully_shard(block)
        wrapped = fully_shard(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    x = torch.randn(2, 7, 16)  # the same on both ranks: only the draws differ
    output = wrapped(x)
    outputs = [torch.zeros_like(output) for _ in range(2)]
    dist.all_gather(outputs, output.detach().contiguous())
    assert not torch.allclose(*outputs), "ranks perturb alike"
    output.square().mean().backward()
    optimizer.step()
    assert [key.removeprefix("module.") for key in wrapped.state_dict()] == keys
    if kind == "ddp":
        weight = model.layers[0].linear1.weight.detach()
        weights = [torch.zeros_like(weight) for _ in range(2)]
        dist.all_gather(weights, weight)
        assert torch.equal(*weights), "DDP did not keep the ranks together"
    wrapped.eval()
    with torch.no_grad():
        assert torch.equal(wrapped(x), wrapped(x))
    attachment.remove()
    wrapped.train()
    assert torch.equal(wrapped(x), wrapped(x))
    # Again, now that FSDP was there first. The classes of before come back.
    classes = [type(module) for module in wrapped.modules()]
    again = attach(wrapped, "hard(p=0.4,k=3)")
    assert len(again.sites) == 2
    output = wrapped(x)
    assert not torch.allclose(output, wrapped(x))
    output.square().mean().backward()
    again.remove()
    assert [type(module) for module in wrapped.modules()] == classes
    assert torch.equal(wrapped(x), wrapped(x))
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks(kind: str) -> None:
    run_two_ranks(__file__, kind)
