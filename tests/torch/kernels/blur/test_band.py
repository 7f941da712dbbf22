"""The band alone, for kernels that put it among their own logits: its logits and gradients against autograd."""

from __future__ import annotations

import pytest
import torch
from blur_cases import Setting, Sizes, error, normal

from attentiondrop.torch.call.inputs import repeat_heads
from attentiondrop.torch.fused.blurred_causal import _band_logits

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]
SETTINGS = [
    (Setting(), Sizes()),
    (Setting(renormalize=True, visible="keys"), Sizes(heads=4)),
    (Setting(width=7), Sizes(rows=12, columns=5)),
    (Setting(groups=3), Sizes(batch=3)),
]


@pytest.mark.parametrize(
    ("setting", "sizes"), SETTINGS, ids=["plain", "masked and grouped", "more rows than keys", "groups"]
)
def test_band_equals_autograd(setting: Setting, sizes: Sizes, device: str) -> None:
    from attentiondrop.torch.kernels.blur.band import add_band_gradients, band_logits
    from attentiondrop.torch.kernels.blur.rows import Blur

    (q, k, _), _ = sizes.make(device, torch.float32)
    q, k = q.detach(), k.detach()
    seed, gate, visible = setting.tensors(device, sizes.batch, sizes.heads, sizes.columns)
    blur, scale = Blur(seed, gate, *setting.sigma_arguments()), 0.7
    shape = sizes.batch, sizes.heads, setting.width // 2, sizes.rows
    band = torch.empty(shape, device=device)
    band_logits(q, k, band, visible, blur, scale)

    exact = [x.double().requires_grad_() for x in (q, k)]
    kernel = setting.kernel(seed, gate, sizes.batch, sizes.heads)
    keys = repeat_heads(exact[1], sizes.heads)
    want = _band_logits(exact[0] * scale, keys, visible, kernel, setting.edges).transpose(-1, -2)
    # Rows near the start have fewer keys than the band has places, and so have rows beyond the last key.
    at = (torch.arange(sizes.rows) - torch.arange(shape[2])[:, None]).to(device)
    has_key = ((at >= 0) & (at < sizes.columns)).expand(shape)
    is_seen = has_key & want.isfinite()
    assert error(band.where(is_seen, 0.0), want.where(is_seen, 0.0)) < 1e-5
    assert bool((band == -torch.inf)[~is_seen].all())

    d_band = normal(*shape, device=device).where(is_seen, 0.0)
    want.where(is_seen, 0.0).backward(d_band.double())
    before = normal(*q.shape, device=device), normal(*k.shape, device=device)
    grads = before[0].clone(), before[1].clone()
    # Where there is no key, nothing was written, and nothing may be read.
    add_band_gradients(d_band.where(has_key, torch.nan), q, k, grads, visible, blur, scale)
    for x, found, start in zip(exact, grads, before, strict=True):
        assert x.grad is not None
        assert error(found, start.double() + x.grad) < 1e-5
