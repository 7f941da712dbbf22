"""Causal blurred attention as an operator: the kernels of the cut-off diagonals around fused attention."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import cpu_library
import pytest
import torch
from blur_cases import INTERPRETED, Setting, Sizes, error, normal
from devices import slow_on_gpu
from torch import Tensor

import attentiondrop as ad
import attentiondrop.torch.fused.blur_operators
from attentiondrop.torch import attention
from attentiondrop.torch.call.inputs import repeat_heads
from attentiondrop.torch.draws import draw_seed
from attentiondrop.torch.eager import regularisers
from attentiondrop.torch.kernels import library_attention

pytestmark = [
    # The interpreter computes with NumPy scalars, whose wrap-around (meant, in a hash) warns.
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]
NARROW = [torch.float16, torch.bfloat16]


def eager(
    q: Tensor, k: Tensor, v: Tensor, visible_keys: Tensor | None, kernel: Tensor, edges: str
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp with the logits spelled out, in the dtype of `q`."""
    heads, scale = q.shape[1], q.shape[-1] ** -0.5
    visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()[None, None]
    visible = visible if visible_keys is None else visible & visible_keys
    logits = scale * q @ repeat_heads(k, heads).transpose(-1, -2)
    logits, _ = regularisers.blur_smoothing(logits, visible, kernel, "keys", edges)
    weights = regularisers.masked_softmax(logits, visible)
    lse = torch.logsumexp(logits.masked_fill(~visible, -torch.inf), dim=-1)
    return weights @ repeat_heads(v, heads), lse.masked_fill(lse == -torch.inf, 0.0)


def causal_errors(setting: Setting, sizes: Sizes, device: str, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """Relative errors of output, log-sum-exp and gradients."""
    inputs, grad = sizes.make(device, dtype)
    seed, gate, visible = setting.tensors(device, sizes.batch, sizes.heads, sizes.columns)
    scale = sizes.size**-0.5
    out, lse, _ = torch.ops.attentiondrop.causal_blurred_attention(
        *inputs, visible, seed, gate, *setting.sigma_arguments(), scale
    )
    out.backward(grad)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    kernel = setting.kernel(seed, gate, sizes.batch, sizes.heads)
    want, want_lse = eager(*exact, visible, kernel, setting.edges)
    want.backward(grad.double())
    assert out.dtype == dtype and out.transpose(1, 2).is_contiguous()
    found = {"output": error(out, want), "lse": error(lse, want_lse)}
    for name, have, true in zip(("query", "key", "value"), inputs, exact, strict=True):
        assert have.grad is not None and true.grad is not None
        found[name] = error(have.grad, true.grad)
    return found


CAUSAL = [
    (Setting(), Sizes()),
    (Setting(renormalize=True), Sizes(batch=2, heads=1, key_heads=1)),
    slow_on_gpu(Setting(width=1, visible="keys"), Sizes(rows=5, columns=5)),
    (Setting(width=3, sampling="sample", gate=0.7), Sizes(batch=2, heads=1, key_heads=1, size=4, value_size=8)),
    (Setting(width=7, sampling="head"), Sizes(heads=4, value_size=12)),
    (Setting(renormalize=True, visible="keys"), Sizes(heads=4, size=8, value_size=8)),
    slow_on_gpu(Setting(visible="heads"), Sizes(heads=4)),
    (Setting(renormalize=True, visible="nothing"), Sizes(batch=2, heads=1, key_heads=1)),
    (Setting(groups=2), Sizes(batch=4, heads=2, key_heads=1)),
    (Setting(renormalize=True, visible="strided"), Sizes(rows=5, columns=11)),
    slow_on_gpu(Setting(visible="keys"), Sizes(rows=11, columns=4)),
    slow_on_gpu(Setting(renormalize=True), Sizes(rows=12, columns=1)),
    slow_on_gpu(Setting(renormalize=True), Sizes(rows=2, columns=2)),
    slow_on_gpu(Setting(), Sizes(rows=1, columns=6)),
    (Setting(width=15, renormalize=True, visible="keys"), Sizes(heads=1, key_heads=1, rows=18, columns=18)),
    slow_on_gpu(Setting(width=17), Sizes(heads=1, key_heads=1, rows=12, columns=12)),
    slow_on_gpu(Setting(sigma=(0.0, 0.0)), Sizes(heads=1, key_heads=1)),
    # Several tiles: 1 K elements are 4 rows here.
    (Setting(visible="keys"), Sizes(heads=1, key_heads=1, rows=21, columns=21, size=130, value_size=256)),
]


@pytest.mark.parametrize(("setting", "sizes"), CAUSAL, ids=str)
def test_causal_attention(setting: Setting, sizes: Sizes, device: str) -> None:
    found = causal_errors(setting, sizes, device)
    # That of `test_parity` for float32, and four times that on a GPU, for the reason that `test_gpu` gives.
    bound = (16 if device == "cpu" else 64) * torch.finfo(torch.float32).eps
    assert max(found.values()) <= bound, found


def test_causal_attention_is_that_of_the_library(device: str) -> None:
    """The same seed, through the public function and in float64."""
    spec = ad.BlurSmoothing(sigma_max=1.5, width=7, sigma_min=0.2, edges="renormalize", sampling="head")
    (q, k, v), _ = Sizes(heads=4).make(device, torch.float32)
    torch.manual_seed(7)
    want = attention(q.double(), k.double(), v.double(), spec, is_causal=True, enable_gqa=True, backend="eager")
    torch.manual_seed(7)
    seed = draw_seed(q)
    out, _, _ = torch.ops.attentiondrop.causal_blurred_attention(
        q, k, v, None, seed, None, 0, spec.sampling, spec.sigma_min, spec.sigma_max, spec.width, True, 1, 5**-0.5
    )
    assert error(out, want) < 64 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_causal_attention_in_16_bits(dtype: torch.dtype, device: str) -> None:
    """As for SDPA: keys and probabilities are rounded, too. The bound is that of `test_parity`."""
    for setting in (Setting(), Setting(renormalize=True, visible="keys", sampling="head")):
        sizes = Sizes(key_heads=1, rows=13, columns=13, size=8, value_size=8)
        found = causal_errors(setting, sizes, device, dtype)
        assert max(found.values()) <= 2 * torch.finfo(dtype).eps, found


@pytest.mark.parametrize("sampling", ["batch", "head"])
def test_grouped_keys_on_the_librarys_attention(sampling: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes grouped keys as they are, and returns gradients of key heads."""
    dtype, bound = torch.float16, 2 * torch.finfo(torch.float16).eps
    if device == "cpu":
        for name, stand_in in (
            ("choose", lambda *tensors: "cpu"),
            ("forward", cpu_library.forward),
            ("backward", cpu_library.backward),
        ):
            monkeypatch.setattr(library_attention, name, stand_in)
        dtype, bound = torch.float32, 64 * torch.finfo(torch.float32).eps
    sizes = Sizes(heads=4, key_heads=2, rows=13, columns=13, size=8, value_size=8)
    found = causal_errors(Setting(renormalize=True, sampling=sampling), sizes, device, dtype)
    assert max(found.values()) <= bound, found


def test_the_output_lies_in_memory_as_the_queries_do(device: str) -> None:
    """As SDPA's does: no copy where a model joins its heads, nor in cuDNN's backward."""
    setting, sizes = Setting(), Sizes(heads=4)
    (q, k, v), _ = sizes.make(device, torch.float32)
    seed, gate, visible = setting.tensors(device, sizes.batch, sizes.heads, sizes.columns)
    for queries in (q, q.contiguous()):
        out, _, _ = torch.ops.attentiondrop.causal_blurred_attention(
            queries, k, v, visible, seed, gate, *setting.sigma_arguments(), 1.0
        )
        assert out.is_contiguous() == queries.is_contiguous()
        assert out.transpose(1, 2).is_contiguous() == queries.transpose(1, 2).is_contiguous()


def test_offsets_in_64_bits_are_those_in_32(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tensors too long for 32 bits need; here they are forced upon short ones."""
    from attentiondrop.torch.kernels.blur import causal_band as blur_band

    asked: list[bool] = []
    tiles = blur_band._tiles

    def long_tiles(*arguments: Any) -> tuple[int, dict[str, object]]:
        rows, constants = tiles(*arguments)
        asked.append(bool(constants["LONG"]))
        return rows, {**constants, "LONG": True}

    setting, sizes = Setting(visible="keys"), Sizes(key_heads=1, rows=9, columns=9, size=130, value_size=256)
    torch.manual_seed(2)
    short = causal_errors(setting, sizes, device)
    monkeypatch.setattr(blur_band, "_tiles", long_tiles)
    torch.manual_seed(2)
    assert causal_errors(setting, sizes, device) == short
    assert asked == [False] * 3  # forward, rows and keys


def test_tensors_too_long_for_32_bits_are_known() -> None:
    from attentiondrop.torch.kernels.blur.causal_band import _tiles
    from attentiondrop.torch.kernels.blur.rows import Blur

    x = torch.empty(1, 1, 1 << 20, 64, device="meta")
    blur = Blur(x, None, *Setting().sigma_arguments())
    for row, is_long in ((2047, False), (2048, True)):
        assert _tiles(x, x, None, None, blur, 1, [0, 0, 64, 0, 0, row])[1]["LONG"] == is_long


def test_causal_attention_repeats_bit_for_bit(device: str) -> None:
    setting, sizes = Setting(), Sizes(key_heads=1)
    inputs, grad = sizes.make(device, torch.float32)
    seed, gate, visible = setting.tensors(device, sizes.batch, sizes.heads, sizes.columns)
    runs = []
    for _ in range(2):
        out, _, _ = torch.ops.attentiondrop.causal_blurred_attention(
            *inputs, visible, seed, gate, *setting.sigma_arguments(), 1.0
        )
        runs.append([out, *torch.autograd.grad(out, inputs, grad)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_part_with_the_gradients_of_groups(device: str) -> None:
    """The part may hand over gradients of key heads already summed over their query heads."""
    from attentiondrop.torch.kernels.blur.causal_band import merge_backward
    from attentiondrop.torch.kernels.blur.rows import Blur

    setting, sizes = Setting(renormalize=True, visible="keys"), Sizes(heads=4)
    (q, k, v), grad = sizes.make(device, torch.float32)
    q, k, v = q.detach(), k.detach(), v.detach()
    seed, gate, visible = setting.tensors(device, 1, 4, 9)
    blur = Blur(seed, gate, *setting.sigma_arguments())
    out, _, weights = torch.ops.attentiondrop.causal_blurred_attention(
        q, k, v, visible, seed, gate, *setting.sigma_arguments(), 1.0
    )
    part = normal(1, 4, 7, 5, device=device), normal(1, 4, 7, 5, device=device), normal(1, 4, 7, 3, device=device)
    summed = part[0], *(x.unflatten(1, (2, 2)).sum(2) for x in part[1:])
    results = []
    for given in (part, summed):
        grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        merge_backward(grad, q, k, v, out, weights, given, grads, visible, blur, 1.0)
        results.append(grads)
    for have, want in zip(*results, strict=True):
        assert error(have, want.double()) < 1e-6


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("visible", [pytest.param("", marks=pytest.mark.slow), "keys"])
def test_the_operators_keep_their_promises(visible: str, device: str) -> None:
    """Schema, fake tensors and autograd registration; dynamic shapes, too."""
    setting, sizes = Setting(width=3, visible=visible, gate=0.5), Sizes(heads=2, key_heads=1, rows=4, columns=4, size=4)
    (q, k, v), grad = sizes.make(device, torch.float32)
    seed, gate, shown = setting.tensors(device, 1, 2, 4)
    ops, sigma = torch.ops.attentiondrop, setting.sigma_arguments()
    torch.library.opcheck(ops.blur, (k, seed, gate, shown, *sigma, False))
    causal = (shown, seed, gate, *sigma, 0.5)
    torch.library.opcheck(ops.causal_blurred_attention, (q, k, v, *causal))
    spread = q.detach().transpose(1, 2).repeat_interleave(2, -1).transpose(1, 2)[..., ::2]
    torch.library.opcheck(ops.causal_blurred_attention, (spread, k, v, *causal))
    results = ops.causal_blurred_attention(q, k, v, *causal)
    detached = [x.detach() for x in (grad, q, k, v, *results)]
    torch.library.opcheck(ops.causal_blurred_attention_backward, (*detached, *causal))


def test_windows_of_one_sequence(device: str) -> None:
    """`unfold` gives tensors with unit stride along two dimensions: the results must not be written as if by one."""
    windows = [normal(1, 2, 12, device=device).unfold(-1, 8, 1) for _ in range(3)]
    seed, setting = torch.tensor(3, device=device), Setting().sigma_arguments()
    results = []
    for tensors in (windows, [x.clone(memory_format=torch.contiguous_format) for x in windows]):
        q, k, v = (x.requires_grad_() for x in tensors)
        blurred = torch.ops.attentiondrop.blur(k, seed, None, None, *setting, False)
        output, _, _ = torch.ops.attentiondrop.causal_blurred_attention(q, k, v, None, seed, None, *setting, 0.3)
        results.append((blurred, output, *torch.autograd.grad(output.square().sum(), (q, k, v))))
    for have, want in zip(*results, strict=True):
        torch.testing.assert_close(have, want)


def test_what_the_backward_keeps(device: str) -> None:
    """Nothing of the size of x for the blur; for attention the inputs and its three results."""
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    (q, k, v), _ = Sizes().make(device, torch.float32)
    setting = replace(Setting(), visible="keys", gate=0.5)
    seed, gate, visible = setting.tensors(device, 1, 2, 9)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        torch.ops.attentiondrop.blur(k, seed, gate, visible, *setting.sigma_arguments(), False)
        assert max(x.numel() for x in kept) <= 9
        kept.clear()
        results = torch.ops.attentiondrop.causal_blurred_attention(
            q, k, v, visible, seed, gate, *setting.sigma_arguments(), 1.0
        )
    known = {x.data_ptr() for x in (q, k, v, *results, seed, gate, visible) if x is not None}
    assert {x.data_ptr() for x in kept} == known


@pytest.mark.skipif(INTERPRETED, reason="no kernel is run: once is enough, without the interpreter")
def test_registering_loads_no_triton() -> None:
    code = "import sys, attentiondrop.torch.fused.blur_operators; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
