"""Two processes on one machine (gloo): DDP and FSDP keep working, and ranks share draws only where they are told to."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run_two_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package")


def worker(rank: int, kind: str) -> None:
    """One rank. Every assertion here fails the test that started it."""
    if kind == "tensor parallel":
        tensor_parallel_worker(rank)
        return
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import attentiondrop as ad
    from attentiondrop.torch import attach, attention
    from attentiondrop.torch.draws import draw_seed

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


def tensor_parallel_worker(rank: int) -> None:
    """The feed-forward layers are sharded over both processes, attention is computed in both: it must be one model."""
    import copy

    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import attentiondrop as ad
    from attentiondrop.torch import attach

    dist.init_process_group("gloo", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    x = torch.randn(2, 7, 16)
    model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    whole = copy.deepcopy(model)
    parallelize_module(model, mesh["tp"], {"linear1": ColwiseParallel(), "linear2": RowwiseParallel()})
    attachments = [attach(part, "hard(p=0.4,k=3)+drophead(p=0.3)") for part in (whole, model)]

    def run(part: nn.Module) -> torch.Tensor:
        torch.manual_seed(1)
        output: torch.Tensor = part(x)
        return output

    def by_rank(output: torch.Tensor) -> list[torch.Tensor]:
        both = [torch.zeros_like(output) for _ in range(2)]
        dist.all_gather(both, output.detach().contiguous())
        return both

    assert not torch.allclose(*by_rank(run(whole))), "by default each process draws for itself"
    for attachment in attachments:
        attachment.set_data_parallel_rank(mesh.get_local_rank("dp"))
    assert torch.equal(*by_rank(run(whole)))
    torch.testing.assert_close(run(model), run(whole))
    run(model).square().mean().backward()
    run(whole).square().mean().backward()
    weight = model.self_attn.in_proj_weight.grad
    torch.testing.assert_close(weight, whole.self_attn.in_proj_weight.grad)
    assert torch.equal(*by_rank(weight))
    assert torch.equal(run(copy.deepcopy(whole)), run(whole)), "a copy draws for another rank"
    attachments[0].set_data_parallel_rank(rank)
    assert not torch.allclose(*by_rank(run(whole))), "another data-parallel rank has other draws"
    attachments[0].set_data_parallel_rank(None)
    assert not torch.allclose(*by_rank(run(whole)))
    with pytest.raises(ad.ArgumentError, match="rank: expected a number >= 0, received -1"):
        attachments[0].set_data_parallel_rank(-1)
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tensor parallel"])
def test_two_ranks(kind: str) -> None:
    run_two_ranks(__file__, kind)
