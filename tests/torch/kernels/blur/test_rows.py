"""The kernels that blur rows, against float64 and its automatic differentiation."""

from __future__ import annotations

import pytest
import torch
from blur_cases import Setting, Sizes, blurred, error, normal, rounded_error
from torch import Tensor

pytestmark = [
    # The interpreter computes with NumPy scalars, whose wrap-around (meant, in a hash) warns.
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]
NARROW = [torch.float16, torch.bfloat16]


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
    Setting(width=3, groups=2),
    Setting(width=9, renormalize=True, groups=2, gate=0.6),
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


@pytest.mark.parametrize("rows", [1, 5, 65_535, 65_536, 300_000, 2**20 + 1, 2**24])
def test_one_launch_takes_all_tiles(rows: int) -> None:
    """CUDA has 65,535 programs along the second axis. Where these suffice, tiles are as small as asked for."""
    pytest.importorskip("triton")
    from attentiondrop.torch.kernels.blur.rows import tile_rows

    for most in (1, 4, 8, 64):
        tile = tile_rows(rows, most)
        assert tile.bit_count() == 1 and -(-rows // tile) <= 65_535
        assert tile <= most or -(-rows // (tile // 2)) > 65_535


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
        out, _, _ = torch.ops.attentiondrop.causal_blurred_attention(
            q, k, v, None, seed, None, *Setting().sigma_arguments(), 1.0
        )
        assert out.shape == grad.shape and not out.any()
        assert not any(x.any() for x in torch.autograd.grad(out, (q, k, v), grad))


def test_a_column_of_a_huge_mask_is_copied() -> None:
    """The kernels count its places in 32 bits."""
    from attentiondrop.torch.kernels.blur.rows import visible_argument

    huge = torch.empty_strided((1, 1, 1, 70_000), (1, 1, 1, 70_000), dtype=torch.bool, device="meta")
    assert visible_argument(huge)[1:] == (0, 0, 1)
    assert visible_argument(huge[..., :3])[1:] == (0, 0, 70_000)
