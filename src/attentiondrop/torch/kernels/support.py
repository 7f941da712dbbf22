"""Whether our Triton kernels can run on a tensor. Answers without importing Triton."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

#: Devices whose tensors go to the kernels. (The tests put "cpu" here, for Triton's interpreter.)
KERNEL_DEVICES = {"cuda"}
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_HAS_TRITON = find_spec("triton") is not None


def compute_capability(index: int) -> int:
    """The compute capability of a CUDA device, as 90 for 9.0. A compiler treats the result as a constant."""
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


# This is what torch.compiler.assume_constant_result does, but it does not load the compiler.
compute_capability._dynamo_marked_constant = True  # type: ignore[attr-defined]


def why_no_kernels(x: Tensor) -> str | None:
    """The reason why the kernels cannot run on `x`, or None if they can."""
    kind = x.device.type
    if kind in KERNEL_DEVICES and x.dtype not in _DTYPES:
        return f"there are no kernels for {x.dtype} on {kind}"
    return why_no_kernels_on(x.device)


def why_no_kernels_on(device: torch.device) -> str | None:
    """The same for a device and any dtype that there are kernels for."""
    kind = device.type
    if kind not in KERNEL_DEVICES:
        return f"there are no kernels for {kind}"
    if kind == "cuda":
        if torch.version.hip is not None:
            return "the kernels have not been tested on ROCm"
        capability = compute_capability(device.index)
        if capability < 80:
            return f"the kernels need compute capability 8.0, this device has {capability / 10}"
    return None if _HAS_TRITON else "Triton is not installed"


def has_kernels(x: Tensor) -> bool:
    """Whether the kernels can run on `x`."""
    return why_no_kernels(x) is None
