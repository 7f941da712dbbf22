"""The attention kernels under windows and blocks of keys, against the oracle with identical draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity import Case
from torch import Tensor
from worst import Worst

import attentiondrop as ad
from attentiondrop.torch import Blocks, attention
from attentiondrop.torch.kernels.decide import launch


def case(name: str, rows: int, columns: int, batch: int = 1, heads: int = 1, **options: Any) -> Case:
    """One head of keys; rows and keys of several tiles of 32, which do not divide them."""
    fields = {field: options.pop(field) for field in ("mask", "is_causal") if field in options}
    return Case(name, batch, heads, 1, rows, columns, 16, 16, **fields, options=options)


#: Windows narrower and wider than a tile; blocks of one tile of float32.
CASES = [
    case("window", 70, 70, window=(9, 20)),
    case("causal window, grouped", 40, 40, heads=2, is_causal=True, window=(33, 3)),
    case("window beyond the keys, masked", 70, 40, mask="keys", window=(6, 0)),
    case("blocks", 40, 70, batch=2, blocks=32),
    case("blocks, causal, window", 40, 70, is_causal=True, blocks=32, window=(20, -1)),
]
SPECS = [
    ad.HardMasking(p=0.4, k=3),
    ad.HardMasking(p=0.4, k=3, fill="-inf"),
    ad.DropKey(0.5),
    ad.DropKey(0.5, by="column"),
    ad.Compose([ad.GaussianNoise(0.5), ad.AttentionDropout(0.3)]),
    ad.DropAttention(0.5, by="column"),
]


#: The interpreter takes its time: these two have all that is new.
QUICK = [one for one in CASES if one.name in ("causal window, grouped", "blocks, causal, window")]


def test_oracle(device: str) -> None:
    compare(SPECS[1], QUICK, device)  # it also keeps the last key of a row


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_oracle_in_all_cases(spec: Any, device: str) -> None:
    compare(spec, CASES, device)


def compare(spec: Any, cases: list[Case], device: str) -> None:
    worst = Worst()
    for one in cases:
        worst.add(spec, one, torch.float32, device)
    worst.check()


@pytest.mark.filterwarnings("ignore::attentiondrop.AttentionDropWarning")  # an extreme rate
def test_ties_go_to_the_lower_key_of_those_in_sight(device: str) -> None:
    """All logits are equal, so the candidates of a row are the first keys that it sees."""
    q, v = torch.zeros(1, 1, 70, 16, device=device), torch.eye(70, device=device)[None, None]
    k = torch.randn(1, 1, 70, 16, device=device)
    spec = ad.HardMasking(p=1.0, k=3, fill="-inf")
    states = torch.tensor([[False, True, True], [True, False, True], [False, False, True]], device=device)
    for options in ({"window": (8, 4)}, {"blocks": Blocks(states, 32)}):
        call = {"backend": "fused", **options}
        weights = attention(q, k, v, spec, **call)[0, 0]
        seen = attention(q, k, v, **call)[0, 0] > 0  # all keys in sight have the same weight
        for row in (0, 40, 69):
            assert weights[row].nonzero().flatten().tolist() == seen[row].nonzero().flatten().tolist()[3:]


def test_patterns_inside_of_blocks(device: str) -> None:
    """A block may be hidden, visible, or visible where its pattern says so; heads differ."""
    states = torch.tensor([[[0, 1, 2], [3, 2, 0]], [[1, 1, 3], [2, 0, 2]]], dtype=torch.int32, device=device)
    blocks = Blocks(states, 32, (torch.rand(2, 32, 32) < 0.5).to(device))
    q, k, v = (torch.randn(1, 2, rows, 16, device=device, requires_grad=True) for rows in (50, 70, 70))
    results = []
    for options in ({"blocks": blocks, "backend": "fused"}, {"attn_mask": blocks.dense(50, 70), "backend": "eager"}):
        torch.manual_seed(3)
        output = attention(q, k, v, SPECS[0], **options)
        results.append([output, *torch.autograd.grad(output.square().sum(), (q, k, v))])
    for have, want in zip(*results, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


def test_only_tiles_in_sight_are_read(device: str) -> None:
    """Keys that no row of a tile sees may hold anything: NaN there does not reach the tile."""
    q, k, v = (torch.randn(1, 1, 96, 16, device=device) for _ in range(3))
    k[:, :, :32] = torch.nan
    spec = ad.HardMasking(p=0.5, k=2)
    first = attention(q, k, v, spec, window=(16, 0), backend="fused")
    assert first[:, :, 64:].isfinite().all() and first[:, :, :16].isnan().all()
    states = torch.eye(3, dtype=torch.bool, device=device)
    second = attention(q, k, v, spec, blocks=Blocks(states, 32), backend="fused")
    assert second[:, :, 32:].isfinite().all() and second[:, :, :32].isnan().all()


def test_nothing_has_the_size_of_the_logits(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels get a window as two numbers, and blocks as a table of blocks."""
    given: list[Tensor] = []
    common = launch.common_arguments

    def watched(*arguments: Any) -> Any:
        found = common(*arguments)
        given.extend(x for x in (*found.local, *found.local_of_keys, *found.masks) if isinstance(x, Tensor))
        return found

    monkeypatch.setattr(launch, "common_arguments", watched)
    q, k, v = (torch.randn(1, 1, 64, 16, device=device, requires_grad=True) for _ in range(3))
    blocks = Blocks(torch.ones(2, 2, dtype=torch.bool, device=device), 32)
    attention(
        q, k, v, ad.HardMasking(p=0.5, k=2), is_causal=True, window=(16, 0), blocks=blocks, backend="fused"
    ).sum().backward()
    assert given and max(x.numel() for x in given) <= q.numel()
