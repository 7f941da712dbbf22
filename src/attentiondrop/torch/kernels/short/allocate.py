"""Memory for the results of kernels, by the shortest way into torch's allocator.

`torch.empty_like` and its kin read their arguments by name and then go through the dispatcher. That takes longer than
finding the memory. The code that Inductor writes uses a shorter way, which torch has from 2.10 to 2.15 at least.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: Sizes, strides and dtype -> a tensor without values on the current CUDA device. (It takes no `torch.Size`.)
Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]


def _usual(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(sizes, strides, dtype=dtype, device="cuda")


def shortest(guards: Any) -> Empty:
    """The shorter way if this version of torch has it, otherwise the usual one."""
    found: Empty = getattr(guards, "_empty_strided_cuda", _usual)
    return found


empty_on_gpu = shortest(getattr(getattr(torch._C, "_dynamo", None), "guards", None))
