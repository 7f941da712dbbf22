"""Meta tensors: training forwards and backwards carry shapes and dtypes through, for every spec and path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop.torch import attach, attention

SPECS = [
    "hard(p=0.4,k=3)",
    "hard(p=0.4,k=3,fill=-inf)",
    "hard(p=0.4,k=3,heads=stratified)",
    "blur(sigma_max=1.5)",
    "blur(sigma_max=1.5,edges=renormalize,sampling=sample)",
    "blur(sigma_max=1.5,axes=both)",
    "dropkey(p=0.3)",
    "noise(sigma=0.5)",
    "attndropout(p=0.3)",
    "drophead(p=0.3)",
    "blur(sigma_max=1.0)+hard(p=0.4,k=3)",
    "oneof(hard(p=0.2),blur)",
]
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "keys": {"attn_mask": torch.ones(2, 1, 1, 9, dtype=torch.bool, device="meta")},
    "additive": {"attn_mask": torch.zeros(9, 9, device="meta"), "dropout_p": 0.1},
}


def check(spec: str, backend: Any, dtype: torch.dtype, options: dict[str, Any]) -> None:
    q = torch.empty(2, 4, 9, 8, dtype=dtype, device="meta", requires_grad=True)
    k, v = torch.empty(2, 2, 2, 9, 8, dtype=dtype, device="meta")
    output = attention(q, k, v, ad.parse(spec), backend=backend, enable_gqa=True, **options)
    assert output.is_meta and output.shape == q.shape and output.dtype == dtype
    (gradient,) = torch.autograd.grad(output.sum(), [q])
    assert gradient.is_meta and gradient.shape == q.shape


@pytest.mark.parametrize("spec", SPECS)
def test_attention(spec: str) -> None:
    state = torch.get_rng_state()
    check(spec, "eager", torch.float32, MASKS["none"])
    check(spec, "fused", torch.bfloat16, MASKS["additive"])
    assert torch.equal(torch.get_rng_state(), state), "something was drawn"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "fused", "auto"])
@pytest.mark.parametrize(
    "spec, mask",
    # A blur along the queries is refused under a causal mask, on every device.
    [(spec, mask) for mask in MASKS for spec in SPECS if mask != "causal" or "both" not in spec],
)
def test_attention_with_masks(spec: str, backend: Any, mask: str) -> None:
    check(spec, backend, torch.float32, MASKS[mask])


def test_what_shapes_forbid_is_still_an_error() -> None:
    q = torch.empty(1, 2, 5, 4, device="meta")
    with pytest.raises(ad.ArgumentError, match="axes"):
        attention(q, q, q, ad.BlurSmoothing(axes="both"), is_causal=True)
    with pytest.raises(ad.ShapeError):
        attention(q, q[..., :3], q, ad.HardMasking())


RATES = ["hard(p=0.1)", "hard(p=warmup(to=0.4))", "hard(p=learnable(init=0.2))", "blur(sigma_max=entropy(target=0.6))"]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("spec", [*RATES, "headmask(count=1,choice=important)"])
def test_a_model_without_storage(spec: str, within: bool) -> None:
    """Attached and run on meta, then given storage: it trains, and its rates are the ones they should be.

    `within`: a model may attach in its own `__init__`.
    """
    with torch.device("meta"):
        model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        attachment = attach(model, spec) if within else None
    attachment = attachment or attach(model, spec)
    attachment.watch()
    x = torch.empty(2, 7, 16, device="meta")
    output: Tensor = model(x)
    assert output.is_meta and output.shape == x.shape
    output.sum().backward()
    before = attachment.rates()
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    attachment.set_progress(0.0)
    assert attachment.rates() == before
    torch.manual_seed(0)
    output = model(torch.randn(2, 7, 16))
    output.sum().backward()
    assert output.isfinite().all() and all(rate.grad is not None for rate in attachment.parameters())
    assert attachment.stats()["self_attn"].calls == 1
