"""Keep torch's own attention from kernels of cuDNN whose gradients may be NaN.

The rule for lengths is in `torch.kernels.library_attention`. Without this, plain models diverge at high learning rates
where models with a regulariser, which run our kernels, do not: a comparison would be unfair.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...torch.kernels.library_attention import cudnn_may_fail
from ..tasks.interface import Data, Task, forward
from .seeding import own_generators

_CUDNN = "_scaled_dot_product_cudnn_attention"
#: Normalisation over a batch needs more than one example.
_EXAMPLES = 2


def meets_unsound_kernel(task: Task, model: nn.Module, data: Data, batch_size: int, accelerator: Accelerator) -> bool:
    """Whether torch would choose a kernel whose gradients may be NaN, for this model on this machine."""
    if accelerator.device.type != "cuda" or not torch.backends.cuda.cudnn_sdp_enabled():
        return False
    if (lengths := task.lengths(data, batch_size)) is not None:
        return any(map(cudnn_may_fail, lengths))
    with own_generators(), accelerator.autocast(), KeyLengths(_CUDNN) as seen:
        was_training = model.training
        forward(model.eval(), send_to_device(task.examples(data, _EXAMPLES).inputs, accelerator.device))
        model.train(was_training)
    return any(map(cudnn_may_fail, seen.lengths))


class KeyLengths(TorchDispatchMode):
    """While active, notes the numbers of keys with which an operator of torch is called."""

    def __init__(self, operator: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operator, self.lengths = operator, set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the length, and do what was asked for."""
        if func.overloadpacket.__name__ == self.operator:
            self.lengths.add(args[1].shape[-2])
        return func(*args, **(kwargs or {}))


@contextmanager
def without_cudnn(needed: bool) -> Iterator[None]:
    """If `needed`, torch's attention does not choose cuDNN inside."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(before and not needed)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
