"""Triton launches on the current device, which need not be that of the tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def on_device(x: Tensor) -> AbstractContextManager[None]:
    """Make the device of `x` the current one."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
