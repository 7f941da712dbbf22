"""Attention that is sharded over the sequence is refused, whoever shards it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import attentiondrop as ad
from attentiondrop.torch import attach, attention

distributed = pytest.importorskip("torch.distributed")
if not distributed.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

HARD = ad.HardMasking(p=0.5, k=2)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """One process that takes part in a mesh."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


class Layer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_sharded_tensors_are_refused(mesh: DeviceMesh, backend: str) -> None:
    q = torch.randn(2, 2, 8, 4)
    pieces = distribute_tensor(q, mesh, [Shard(2)])
    with pytest.raises(ad.AttentionDropError, match=r"needs whole rows: .* received a query with the placement Shard"):
        attention(pieces, pieces, pieces, HARD, backend=backend)
    whole = distribute_tensor(q, mesh, [Replicate()])
    with pytest.raises(ad.AttentionDropError, match=r"received a key with the placement Shard"):
        attention(whole, pieces, pieces, HARD, backend=backend)


def test_context_parallel_is_refused(mesh: DeviceMesh) -> None:
    from torch.distributed.tensor.experimental import context_parallel

    x = torch.randn(2, 2, 8, 4)
    layers = [Layer(), nn.MultiheadAttention(8, 2, batch_first=True)]
    attachments = [attach(layer, HARD) for layer in layers]
    calls = [lambda: layers[0](x), lambda: layers[1](*[x.flatten(1, 2)[..., :4].repeat(1, 1, 2)] * 3)]
    for call in calls:
        call()
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]):
            with pytest.raises(ad.AttentionDropError, match="expected sequences that are not sharded, received "):
                call()
        call()
    assert len(attachments) == 2


def test_a_replaced_function_of_transformers_is_refused(monkeypatch) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config = transformers.GPT2Config(vocab_size=9, n_layer=1, n_head=2, n_embd=8, n_positions=8)
    model = transformers.GPT2LMHeadModel(config).train()
    attach(model, HARD)
    words = torch.tensor([[1, 2, 3]])
    model(words)

    def gathering(*args, **kwargs):
        raise NotImplementedError

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    transformers.AttentionInterface.register("sdpa", gathering)
    try:
        with pytest.raises(
            ad.AttentionDropError,
            match=r"'sdpa' of transformers was replaced by .*gathering, as libraries do that shard",
        ):
            model(words)
    finally:
        transformers.AttentionInterface.register("sdpa", before)
    model(words)
