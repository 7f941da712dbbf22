"""Where the kernels run: on a CUDA device (`pytest -m gpu`), or in Triton's interpreter (`TRITON_INTERPRET=1 pytest`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from blur_cases import INTERPRETED

IN_INTERPRETER = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
ON_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device"),
)
#: The values of the fixture `device`.
CPU = pytest.param("cpu", marks=IN_INTERPRETER)
CUDA = pytest.param("cuda", marks=ON_GPU)

#: For a test that has no counterpart in the interpreter.
only_on_gpu = pytest.mark.parametrize("device", [CUDA], indirect=True)


def slow(value: Any) -> Any:
    """More of the same: by `make test-all` in the interpreter, which takes minutes, by `make test-gpu-all` on a GPU."""
    return pytest.param(value, marks=pytest.mark.slow)


def slow_on_gpu(*values: Any) -> Any:
    """More of the same on a GPU, for which each variant of a kernel is compiled; the interpreter always runs it."""
    return pytest.param(*values, marks=pytest.mark.slow_on_gpu)
