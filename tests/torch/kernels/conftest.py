"""The device of a kernel test, memory that shows what no kernel wrote, and what is slow on a GPU."""

from __future__ import annotations

import pytest
import torch
from blur_cases import INTERPRETED
from devices import CPU, CUDA
from torch import Tensor

from attentiondrop.torch import dispatch, functional
from attentiondrop.torch.kernels import support
from attentiondrop.torch.kernels.short import run_kernels


@pytest.fixture(params=[CPU, CUDA])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(support, "KERNEL_DEVICES", {request.param})
    torch.backends.cuda.matmul.allow_tf32 = False
    device: str = request.param
    return device


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN, so that an element that no kernel wrote, or that was read too early, shows."""
    empty, empty_like, new_empty, strided = torch.empty, torch.empty_like, Tensor.new_empty, Tensor.new_empty_strided

    def fill(x: Tensor) -> Tensor:
        fake = isinstance(x, torch._subclasses.FakeTensor)
        # (Checkpointing makes an empty leaf that requires a gradient: nothing to poison.)
        return x if fake or x.requires_grad or not x.is_floating_point() else x.fill_(torch.nan)

    monkeypatch.setattr(torch, "empty", lambda *a, **k: fill(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: fill(empty_like(*a, **k)))
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: fill(new_empty(*a, **k)))
    monkeypatch.setattr(Tensor, "new_empty_strided", lambda *a, **k: fill(strided(*a, **k)))
    on_gpu = run_kernels.empty_on_gpu
    monkeypatch.setattr(run_kernels, "empty_on_gpu", lambda *a: fill(on_gpu(*a)))


@pytest.fixture
def taken_paths(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The fused paths that a test has taken so far."""
    taken: set[str] = set()
    fused = functional.fused_attention

    def noted(route: dispatch.Route) -> Tensor:
        taken.add(route.path)
        return fused(route)

    monkeypatch.setattr(functional, "fused_attention", noted)
    torch.backends.cuda.matmul.allow_tf32 = False
    return taken


@pytest.fixture(autouse=True)
def no_short_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for short rows have tests of their own: elsewhere, the paths that they would replace are tested."""
    if "short" not in request.path.parts:
        monkeypatch.setattr(dispatch, "why_not_short", lambda *_: "this test is about another path")


if INTERPRETED:
    from quick_interpreter import replace_the_language_once

    replace_the_language_once()
