"""Where the kernels run: on a CUDA device (`pytest -m gpu`), or in Triton's interpreter (`TRITON_INTERPRET=1 pytest`)."""

from __future__ import annotations

import os

import pytest
import torch

from attentiondrop.torch import kernel_support

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


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
