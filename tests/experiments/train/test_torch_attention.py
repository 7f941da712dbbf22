"""Torch's own attention in a run: not by kernels of cuDNN whose gradients may be NaN."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attentiondrop.experiments.train import torch_attention
from attentiondrop.experiments.train.torch_attention import KeyLengths, meets_unsound_kernel, without_cudnn
from attentiondrop.torch.kernels import library_attention
from attentiondrop.torch.kernels.library_attention import cudnn_may_fail

ON_A_CPU = "_scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.parametrize(("version", "fails"), [(91900, True), (92600, False), (None, True)])
def test_which_lengths_fail(monkeypatch, version: int | None, fails: bool) -> None:
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: version)
    assert [columns for columns in range(1, 400) if cudnn_may_fail(columns)] == [64, 192, 320] * fails


@pytest.mark.parametrize(
    ("columns", "version", "kind"), [(320, 91900, "flash"), (320, 92600, "cudnn"), (256, 1, "cudnn")]
)
def test_blurred_keys_do_not_meet_it(monkeypatch, columns: int, version: int, kind: str) -> None:
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: version)
    monkeypatch.setattr(library_attention, "compute_capability", lambda index: 90)
    q = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.bfloat16, shape=(2, 4, columns, 64))
    assert library_attention.choose(q, q, q) == kind


class Attention(nn.Module):
    """Attention, and nothing else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Over the tokens [B, N, 16]."""
        x = x[:, None]
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("tokens", "lengths", "meets"),
    [(64, None, True), (65, None, False), (65, {8, 64}, True), (64, {8, 16}, False)],
)
def test_what_a_model_meets(monkeypatch, tokens: int, lengths: set[int] | None, meets: bool) -> None:
    """On a CPU, with the operator that torch chooses there."""
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91900)
    monkeypatch.setattr(torch_attention, "_CUDNN", ON_A_CPU)
    monkeypatch.setattr(torch_attention, "send_to_device", lambda inputs, device: inputs)
    examples = SimpleNamespace(inputs=torch.randn(2, tokens, 16))
    task = SimpleNamespace(lengths=lambda data, batch_size: lengths, examples=lambda data, count: examples)
    model = Attention().train()
    for device, expected in (("cuda", meets), ("cpu", False)):
        accelerator = SimpleNamespace(
            device=torch.device(device), autocast=lambda: torch.autocast("cpu", enabled=False)
        )
        assert meets_unsound_kernel(task, model, None, 8, accelerator) is expected  # type: ignore[arg-type]
    assert model.training


def test_lengths_are_seen_inside_of_layers_of_torch() -> None:
    layer = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    query, keys = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    with KeyLengths(ON_A_CPU) as seen:
        layer(query, keys, keys, need_weights=False)
    assert seen.lengths == {7}


def test_the_switch_is_put_back() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    for needed in (True, False):
        with without_cudnn(needed):
            assert torch.backends.cuda.cudnn_sdp_enabled() == (before and not needed)
        assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_the_switch_is_put_back_after_an_error() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with pytest.raises(KeyError), without_cudnn(True):
        raise KeyError
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("tokens", [64, 65, 128, 192, 197, 320])
def test_gradients_where_all_logits_are_far_below_zero(tokens: int) -> None:
    """If torch's cuDNN fails at other lengths, too, the rule is too narrow."""
    q, k, v = (torch.randn(2, 3, tokens, 32, device="cuda", dtype=torch.bfloat16) * 0.1 for _ in range(3))
    q[..., 0], k[..., 0] = 1.0, -120 * math.sqrt(32)
    for one in (q, k, v):
        one.requires_grad_()
    with without_cudnn(cudnn_may_fail(tokens)):
        F.scaled_dot_product_attention(q, k, v).sum().backward()
    assert all(bool(one.grad.isfinite().all()) for one in (q, k, v) if one.grad is not None)
