"""The sigma of a blur on a CPU: where its rates are tensors that can be read, NumPy draws it, with the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import attentiondrop as ad
from attentiondrop.torch.call import leaves
from attentiondrop.torch.call.inputs import Options
from attentiondrop.torch.call.leaves import Driven, LogitShape, active_leaves
from attentiondrop.torch.eager.table import _one_sigma, blur_sigma
from attentiondrop.torch.functional import perturbed_attention


class Watched(TorchDispatchMode):
    """Whoever watches operations must see all of them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", ["eager", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fields", [("sigma_max",), ("sigma_min",), ("sigma_max", "sigma_min")], ids="+".join)
def test_numpy_draws_the_sigma_of_tensors(
    fields: tuple[str, ...], dtype: torch.dtype, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ad.BlurSmoothing(0.7, sigma_min=0.1)
    drop = Driven(spec, {0: {field: torch.tensor(getattr(spec, field) * 1.1, dtype=dtype) for field in fields}})
    q, k, v = torch.randn(3, 1, 2, 7, 4, dtype=dtype)

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return perturbed_attention(q, k, v, drop, Options(), backend=backend).output

    with Watched():
        expected = [run(seed) for seed in range(8)]
    monkeypatch.setattr(leaves, "Stream", None)  # draws by operations
    for seed, want in enumerate(expected):
        assert torch.equal(run(seed), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_sigma_itself(dtype: torch.dtype) -> None:
    """It is rounded where tensors are: differences of sigmas in the dtype of the logits, not in double precision."""
    drop = Driven(ad.BlurSmoothing(0.7, sigma_min=0.7), {0: {"sigma_max": torch.tensor(0.77, dtype=dtype)}})
    for seed in range(100):
        (leaf,) = active_leaves(drop, torch.tensor(seed), dtype)
        assert float(_one_sigma(leaf, dtype)) == blur_sigma(leaf, LogitShape(1, 1, 1, 1), dtype).item()


@pytest.mark.parametrize("backend", ["eager", "fused"])
def test_a_learned_sigma_keeps_its_gradient(backend: str) -> None:
    rate = torch.tensor(0.7, requires_grad=True)
    q, k, v = torch.randn(3, 1, 2, 7, 4)
    drop = Driven(ad.BlurSmoothing(0.7, sigma_min=0.5), {0: {"sigma_max": rate}})
    perturbed_attention(q, k, v, drop, Options(), backend=backend).output.square().sum().backward()
    assert rate.grad is not None and rate.grad != 0
