"""The blur's Triton kernels: on the CPU in Triton's interpreter (`TRITON_INTERPRET=1`), on a GPU with `pytest -m gpu`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import attentiondrop as ad
import attentiondrop.torch.blur_ops  # registers the operators
from attentiondrop.torch import attention, regularisers
from attentiondrop.torch.inputs import repeat_heads
from attentiondrop.torch.random import Stream, draw_seed

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs CUDA or TRITON_INTERPRET=1"),
    # The interpreter computes with NumPy scalars, whose wrap-around (meant, in a hash) warns.
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]
NARROW = [torch.float16, torch.bfloat16]


@pytest.fixture(params=["cpu" if INTERPRETED else pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN, so that an element that no kernel wrote, or that was read too early, shows."""
    empty, empty_like, new_empty = torch.empty, torch.empty_like, Tensor.new_empty

    def fill(x: Tensor) -> Tensor:
        fake = isinstance(x, torch._subclasses.FakeTensor)
        return x.fill_(torch.nan) if x.is_floating_point() and not fake else x

    monkeypatch.setattr(torch, "empty", lambda *a, **k: fill(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: fill(empty_like(*a, **k)))
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: fill(new_empty(*a, **k)))


@dataclass(frozen=True)
class Setting:
    """How a blur is drawn, and what it meets."""

    width: int = 5
    renormalize: bool = False
    sampling: str = "batch"
    visible: str = ""
    gate: float | None = None
    sigma: tuple[float, float] = (0.3, 1.5)
    stream: int = 3

    def sigma_arguments(self) -> tuple[Any, ...]:
        return self.stream, self.sampling, *self.sigma, self.width, self.renormalize

    def tensors(self, device: str, batch: int, heads: int, length: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Seed, gate and visibility."""
        seed = torch.randint(0, 2**63 - 1, ()).to(device)
        gate = None if self.gate is None else torch.tensor(self.gate, device=device)
        if not self.visible:
            return seed, gate, None
        visible = torch.rand(batch, heads if self.visible == "heads" else 1, 1, length) < 0.6
        visible[0, :, :, :2] = False  # a causal row that sees nothing
        if self.visible == "strided":
            wide = torch.zeros(batch, 1, length, 2, dtype=torch.bool)
            wide[..., 1] = visible.squeeze(2)
            visible = wide[..., 1].unsqueeze(2)
        elif self.visible == "shared":
            visible = visible[:1]
        elif self.visible == "nothing":
            visible[-1] = False
        return seed, gate, visible.to(device)

    def kernel(self, seed: Tensor, gate: Tensor | None, batch: int, heads: int) -> Tensor:
        """The weights that the kernels make for themselves, in float64."""
        count = {"batch": 1, "sample": batch, "head": heads}[self.sampling]
        uniform = Stream(seed, self.stream).uniform_vector(count).double()
        sigma = self.sigma[0] + (self.sigma[1] - self.sigma[0]) * uniform
        sigma = sigma if gate is None else sigma * gate.double()
        return regularisers.gaussian_kernel(sigma.view(-1, 1) if self.sampling == "sample" else sigma, self.width)[
            (...,) if self.sampling == "sample" else (None,)
        ]

    @property
    def edges(self) -> str:
        return "renormalize" if self.renormalize else "zero"


def error(have: Tensor, want: Tensor) -> float:
    have, want = have.detach().double(), want.detach()
    assert have.shape == want.shape
    assert bool(have.isfinite().all())
    return float((have - want).norm() / want.norm()) if want.any() else float(have.norm())


def rounded_error(want: Tensor, dtype: torch.dtype) -> float:
    """What a float32 computation and one rounding would leave."""
    exact = want.detach().float()
    if INTERPRETED and dtype == torch.bfloat16:
        # Triton's interpreter cuts float32 off where a GPU rounds it.
        return error((exact.view(torch.int32) & -(2**16)).view(torch.float32), want)
    return error(exact.to(dtype), want)


def normal(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype).to(device)


def blurred(x: Tensor, setting: Setting, seed: Tensor, gate: Tensor | None, visible: Tensor | None) -> Tensor:
    """The blur in float64."""
    kernel = setting.kernel(seed, gate, *x.shape[:2])
    return regularisers.convolve_keys(x.double(), visible, kernel, setting.edges)


BLURS = [
    Setting(),
    Setting(width=1),
    Setting(width=3, sampling="sample", gate=0.7),
    Setting(width=7, sampling="head", renormalize=True),
    Setting(width=5, renormalize=True, visible="keys"),
    Setting(width=9, renormalize=True, visible="heads", sampling="head"),
    Setting(width=15, visible="strided"),
    Setting(width=5, visible="shared", sampling="sample"),
    Setting(width=5, visible="nothing", renormalize=True),
    Setting(width=17, renormalize=True),
    Setting(sigma=(0.0, 0.0), renormalize=True),
    Setting(gate=0.0, visible="keys"),
]


@pytest.mark.parametrize("setting", BLURS, ids=str)
def test_blur_and_its_transpose(setting: Setting, device: str) -> None:
    """Length 11 leaves a tile partly empty, and size 5 its columns; float64 autograd is the judge of the transpose."""
    batch, heads = 1 if setting.sampling == "head" else 2, 1 if setting.sampling == "sample" else 2
    length, size = 11, 5
    if setting.width > 15:
        batch, heads = 1, 1  # The interpreter is slow.
    seed, gate, visible = setting.tensors(device, batch, heads, length)
    x = normal(batch, heads, length, size, device=device).requires_grad_()
    grad = normal(batch, heads, length, size, device=device)
    out = torch.ops.attentiondrop.blur(x, seed, gate, visible, *setting.sigma_arguments(), False)
    out.backward(grad)
    exact = x.detach().double().requires_grad_()
    want = blurred(exact, setting, seed, gate, visible)
    want.backward(grad.double())
    assert x.grad is not None and exact.grad is not None
    assert error(out, want) < 1e-6
    assert error(x.grad, exact.grad) < 1e-6


def test_the_gradient_of_the_transpose_is_the_blur(device: str) -> None:
    setting = Setting(renormalize=True, visible="keys")
    seed, gate, visible = setting.tensors(device, 1, 1, 9)
    x, grad = normal(1, 1, 9, 4, device=device).requires_grad_(), normal(1, 1, 9, 4, device=device)
    torch.ops.attentiondrop.blur(x, seed, gate, visible, *setting.sigma_arguments(), True).backward(grad)
    assert x.grad is not None
    assert error(x.grad, blurred(grad, setting, seed, gate, visible)) < 1e-6


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_16_bits_are_rounded_once(dtype: torch.dtype, transposed: bool, device: str) -> None:
    setting = Setting(width=7, renormalize=True)
    seed, gate, visible = setting.tensors(device, 1, 2, 19)
    x = normal(1, 2, 19, 8, device=device, dtype=dtype)
    out = torch.ops.attentiondrop.blur(x, seed, gate, visible, *setting.sigma_arguments(), transposed)
    exact = x.double().requires_grad_()
    want = blurred(exact, setting, seed, gate, visible)
    if transposed:
        (want,) = torch.autograd.grad(want, exact, x.double())
    assert out.dtype == dtype
    assert error(out, want) <= 2 * rounded_error(want, dtype)


def layouts(x: Tensor) -> dict[str, Tensor]:
    """The same numbers [B, H, M, D] in other places in memory."""
    batch, heads, length, size = x.shape
    packed = torch.full((batch, length, 3, heads, size), torch.nan, dtype=x.dtype, device=x.device)
    packed[:, :, 1] = x.transpose(1, 2)
    return {
        "packed": packed[:, :, 1].transpose(1, 2),
        "tokens first": x.transpose(1, 2).contiguous().transpose(1, 2),
        "last dimension strided": x.transpose(-1, -2).contiguous().transpose(-1, -2),
        "one batch expanded": x[:1].expand(batch, -1, -1, -1),
    }


@pytest.mark.parametrize("name", ["packed", "tokens first", "last dimension strided", "one batch expanded"])
def test_memory_layouts(name: str, device: str) -> None:
    setting = Setting(width=3)
    seed, gate, visible = setting.tensors(device, 2, 2, 7)
    x = layouts(normal(2, 2, 7, 8, device=device))[name]
    out = torch.ops.attentiondrop.blur(x, seed, gate, visible, *setting.sigma_arguments(), False)
    assert error(out, blurred(x, setting, seed, gate, visible)) < 1e-6
    if name == "packed":
        assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("size", [1, 3, 33, 256])
def test_head_sizes(size: int, device: str) -> None:
    """Several tiles of rows at 256; a tile that is as long as the sequence at 1."""
    setting = Setting(width=3, renormalize=True)
    seed, gate, visible = setting.tensors(device, 1, 1, 37)
    x = normal(1, 1, 37, size, device=device)
    out = torch.ops.attentiondrop.blur(x, seed, gate, visible, *setting.sigma_arguments(), False)
    assert error(out, blurred(x, setting, seed, gate, visible)) < 1e-6


def test_hidden_rows_are_not_read(device: str) -> None:
    setting = Setting(visible="keys")
    seed, gate, visible = setting.tensors(device, 1, 1, 9)
    assert visible is not None
    x = normal(1, 1, 9, 4, device=device)
    poisoned = x.masked_fill(~visible.transpose(-1, -2), torch.nan)
    out = torch.ops.attentiondrop.blur(poisoned, seed, gate, visible, *setting.sigma_arguments(), False)
    assert error(out, blurred(x, setting, seed, gate, visible)) < 1e-6


def test_nothing_to_blur(device: str) -> None:
    seed = torch.tensor(1, device=device)
    for shape in ((0, 2, 5, 4), (2, 2, 0, 4)):
        x = torch.ones(shape, device=device)
        assert torch.ops.attentiondrop.blur(x, seed, None, None, *Setting().sigma_arguments(), False).shape == shape
    for sizes in (Sizes(columns=0), Sizes(rows=0), Sizes(batch=0)):
        (q, k, v), grad = sizes.make(device, torch.float32)
        out, _ = torch.ops.attentiondrop.causal_blurred_attention(
            q, k, v, None, seed, None, *Setting().sigma_arguments(), 1.0
        )
        assert out.shape == grad.shape and not out.any()
        assert not any(x.any() for x in torch.autograd.grad(out, (q, k, v), grad))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a causal attention."""

    batch: int = 1
    heads: int = 2
    key_heads: int = 2
    rows: int = 9
    columns: int = 9
    size: int = 5
    value_size: int = 3

    def make(self, device: str, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        """Queries, keys and values, the first two with tokens first in memory; and a gradient of the output."""
        q = normal(self.batch, self.rows, self.heads, self.size, device=device, dtype=dtype).transpose(1, 2)
        k = normal(self.batch, self.columns, self.key_heads, self.size, device=device, dtype=dtype).transpose(1, 2)
        v = normal(self.batch, self.key_heads, self.columns, self.value_size, device=device, dtype=dtype)
        grad = normal(self.batch, self.heads, self.rows, self.value_size, device=device, dtype=dtype)
        return [x.requires_grad_() for x in (q, k, v)], grad


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
    out, lse = torch.ops.attentiondrop.causal_blurred_attention(
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
    (Setting(width=1, visible="keys"), Sizes(rows=5, columns=5)),
    (Setting(width=3, sampling="sample", gate=0.7), Sizes(batch=2, heads=1, key_heads=1, size=4, value_size=8)),
    (Setting(width=7, sampling="head"), Sizes(heads=4, value_size=12)),
    (Setting(renormalize=True, visible="keys"), Sizes(heads=4, size=8, value_size=8)),
    (Setting(visible="heads"), Sizes(heads=4)),
    (Setting(renormalize=True, visible="nothing"), Sizes(batch=2, heads=1, key_heads=1)),
    (Setting(renormalize=True, visible="strided"), Sizes(rows=5, columns=11)),
    (Setting(visible="keys"), Sizes(rows=11, columns=4)),
    (Setting(renormalize=True), Sizes(rows=12, columns=1)),
    (Setting(renormalize=True), Sizes(rows=2, columns=2)),
    (Setting(), Sizes(rows=1, columns=6)),
    (Setting(width=15, renormalize=True, visible="keys"), Sizes(heads=1, key_heads=1, rows=18, columns=18)),
    (Setting(width=17), Sizes(heads=1, key_heads=1, rows=12, columns=12)),
    (Setting(sigma=(0.0, 0.0)), Sizes(heads=1, key_heads=1)),
    # Several tiles: 2 K elements are 8 rows here.
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
    out, _ = torch.ops.attentiondrop.causal_blurred_attention(
        q, k, v, None, seed, None, 0, spec.sampling, spec.sigma_min, spec.sigma_max, spec.width, True, 5**-0.5
    )
    assert error(out, want) < 64 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_causal_attention_in_16_bits(dtype: torch.dtype, device: str) -> None:
    """As for SDPA: keys and probabilities are rounded, too. The bound is that of `test_parity`."""
    for setting in (Setting(), Setting(renormalize=True, visible="keys", sampling="head")):
        sizes = Sizes(key_heads=1, rows=13, columns=13, size=8, value_size=8)
        found = causal_errors(setting, sizes, device, dtype)
        assert max(found.values()) <= 2 * torch.finfo(dtype).eps, found


def test_causal_attention_repeats_bit_for_bit(device: str) -> None:
    setting, sizes = Setting(), Sizes(key_heads=1)
    inputs, grad = sizes.make(device, torch.float32)
    seed, gate, visible = setting.tensors(device, sizes.batch, sizes.heads, sizes.columns)
    runs = []
    for _ in range(2):
        out, _ = torch.ops.attentiondrop.causal_blurred_attention(
            *inputs, visible, seed, gate, *setting.sigma_arguments(), 1.0
        )
        runs.append([out, *torch.autograd.grad(out, inputs, grad)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_part_with_the_gradients_of_groups(device: str) -> None:
    """The part may hand over gradients of key heads already summed over their query heads."""
    from attentiondrop.torch.kernels.blur import Blur
    from attentiondrop.torch.kernels.blur_band import merge_backward

    setting, sizes = Setting(renormalize=True, visible="keys"), Sizes(heads=4)
    (q, k, v), grad = sizes.make(device, torch.float32)
    q, k, v = q.detach(), k.detach(), v.detach()
    seed, gate, visible = setting.tensors(device, 1, 4, 9)
    blur = Blur(seed, gate, *setting.sigma_arguments())
    out, lse = torch.ops.attentiondrop.causal_blurred_attention(
        q, k, v, visible, seed, gate, *setting.sigma_arguments(), 1.0
    )
    part = normal(1, 4, 7, 5, device=device), normal(1, 4, 7, 5, device=device), normal(1, 4, 7, 3, device=device)
    summed = part[0], *(x.unflatten(1, (2, 2)).sum(2) for x in part[1:])
    results = []
    for given in (part, summed):
        grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        merge_backward(grad, q, k, v, out, lse, given, grads, visible, blur, 1.0)
        results.append(grads)
    for have, want in zip(*results, strict=True):
        assert error(have, want.double()) < 1e-6


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("visible", ["", "keys"])
def test_the_operators_keep_their_promises(visible: str, device: str) -> None:
    """Schema, fake tensors and autograd registration; dynamic shapes, too."""
    setting, sizes = Setting(width=3, visible=visible, gate=0.5), Sizes(heads=2, key_heads=1, rows=4, columns=4, size=4)
    (q, k, v), grad = sizes.make(device, torch.float32)
    seed, gate, shown = setting.tensors(device, 1, 2, 4)
    ops, sigma = torch.ops.attentiondrop, setting.sigma_arguments()
    torch.library.opcheck(ops.blur, (k, seed, gate, shown, *sigma, False))
    causal = (shown, seed, gate, *sigma, 0.5)
    torch.library.opcheck(ops.causal_blurred_attention, (q, k, v, *causal))
    out, lse = ops.causal_blurred_attention(q, k, v, *causal)
    detached = [x.detach() for x in (grad, q, k, v, out, lse)]
    torch.library.opcheck(ops.causal_blurred_attention_backward, (*detached, *causal))


def test_what_the_backward_keeps(device: str) -> None:
    """Nothing of the size of x for the blur; for attention the inputs, the output and the log-sum-exp."""
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
        out, lse = torch.ops.attentiondrop.causal_blurred_attention(
            q, k, v, visible, seed, gate, *setting.sigma_arguments(), 1.0
        )
    known = {x.data_ptr() for x in (q, k, v, out, lse, seed, gate, visible) if x is not None}
    assert {x.data_ptr() for x in kept} == known


def test_registering_loads_no_triton() -> None:
    code = "import sys, attentiondrop.torch.blur_ops; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
