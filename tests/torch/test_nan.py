"""A NaN in the input shows in the output, on every path; one that no row sees does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attentiondrop as ad
from attentiondrop.torch import attention
from attentiondrop.torch.fused import row_blocks

SPECS = [
    *(ad.HardMasking(p=0.5, k=k, fill=fill) for k in (3, 100) for fill in ("zero", "-inf")),
    ad.DropKey(0.4),
    ad.GaussianNoise(1.0),
    ad.AttentionDropout(0.3),
    ad.BlurSmoothing(sigma_min=1.0, sigma_max=1.0),
    ad.DropHead(0.3),
    ad.Compose([ad.GaussianNoise(1.0), ad.HardMasking(p=0.5, k=3), ad.AttentionDropout(0.3)]),
    ad.Compose([ad.DropKey(0.4, by="column"), ad.DropAttention(0.3)]),
]
#: These run in SDPA rather than in row blocks.
IN_SDPA = SPECS[7:9]
KEYS = torch.arange(40) < 33
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "keys": {"attn_mask": KEYS.view(1, 1, 1, 40)},
    "pairs": {"attn_mask": (KEYS & (torch.rand(40, 40, generator=torch.Generator().manual_seed(1)) < 0.7))[None, None]},
    "additive": {"attn_mask": torch.zeros(40).masked_fill(~KEYS, -torch.inf).view(1, 1, 1, 40)},
}


def run(spec: ad.Spec, inputs: list[Tensor], backend: str, options: dict[str, Any]) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    torch.manual_seed(5)
    output = attention(*leaves, spec, backend=backend, **options)
    output.sum().backward()
    return [output.detach(), *(x.grad for x in leaves if x.grad is not None)]


def tensors() -> list[Tensor]:
    q, k, v = torch.randn(3, 1, 2, 40, 8, generator=torch.Generator().manual_seed(0)).unbind()
    return [q.clone(), k.clone(), v.clone()]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("budget", [2**20, 400])
def test_row_blocks_show_what_eager_shows(
    spec: ad.Spec, mask: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_blocks, "BUDGET", budget)
    for place in ("query", "key", "hidden key"):
        q, k, v = tensors()
        if place == "query":
            q[0, 0, 7, 2] = torch.nan
        elif place == "hidden key" and mask in ("none", "causal"):
            continue
        elif spec in IN_SDPA and (place == "hidden key" or mask == "pairs"):
            continue  # SDPA itself adds -inf to a hidden NaN, which then shows
        else:
            k[0, 1, 20 if place == "key" else 36, 3] = torch.nan
        if mask == "pairs" and isinstance(spec, ad.BlurSmoothing):
            continue  # has no fused path
        want, want_q, *_ = run(spec, [q, k, v], "eager", MASKS[mask])
        have, have_q, *_ = run(spec, [q, k, v], "fused", MASKS[mask])
        assert bool(want.isnan().any()) == (place != "hidden key")
        assert torch.allclose(have, want, atol=1e-5, equal_nan=True), place
        # A row that shows a NaN has no gradient. Beyond that, eager multiplies the NaN of a key with weights of 0.
        assert bool(have_q[want.isnan()].isnan().all()), place
        numbers = ~want_q.isnan()
        assert torch.allclose(have_q[numbers], want_q[numbers], atol=1e-4), place


@pytest.mark.parametrize("backend", ["eager", "fused"])
def test_a_bias_and_a_mask_show_theirs(backend: str) -> None:
    inputs = tensors()
    for name in ("attn_mask", "bias"):
        shift = torch.zeros(1, 1, 40, 40)
        shift[0, 0, 4, 9] = torch.nan
        output = run(ad.HardMasking(p=0.5, k=3), inputs, backend, {name: shift})[0]
        assert output.isnan().all(-1).sum() == 2 and bool(output[:, :, 4].isnan().all())


@pytest.mark.filterwarnings("ignore:p=1 is legal")
def test_dropkey_never_hides_one() -> None:
    q, k, v = tensors()
    k[0, 0, 3] = torch.nan
    for backend in ("eager", "fused"):
        output = run(ad.DropKey(1.0), [q, k, v], backend, {})[0]
        assert bool(output[:, 0].isnan().all()) and not bool(output[:, 1].isnan().any())
