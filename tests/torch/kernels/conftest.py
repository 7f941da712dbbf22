"""Where the kernels run: on a CUDA device (`pytest -m gpu`), or in Triton's interpreter (`TRITON_INTERPRET=1 pytest`)."""

from __future__ import annotations

import pytest
import torch
from blur_cases import INTERPRETED
from torch import Tensor

from attentiondrop.torch import kernel_support


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")),
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ]
)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(kernel_support, "KERNEL_DEVICES", {request.param})
    torch.backends.cuda.matmul.allow_tf32 = False
    device: str = request.param
    return device


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN, so that an element that no kernel wrote, or that was read too early, shows."""
    empty, empty_like, new_empty = torch.empty, torch.empty_like, Tensor.new_empty

    def fill(x: Tensor) -> Tensor:
        fake = isinstance(x, torch._subclasses.FakeTensor)
        # (Checkpointing makes an empty leaf that requires a gradient: nothing to poison.)
        return x if fake or x.requires_grad or not x.is_floating_point() else x.fill_(torch.nan)

    monkeypatch.setattr(torch, "empty", lambda *a, **k: fill(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: fill(empty_like(*a, **k)))
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: fill(new_empty(*a, **k)))
