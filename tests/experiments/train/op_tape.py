"""What a CUDA graph does, on a CPU: a tape of the operations of a step, which can be repeated.

As in a graph, a repetition calls no Python of the step, reads and writes the same tensors, draws anew, and keeps every
number that was not in a tensor. Reading a tensor from Python is an error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attentiondrop.experiments.train.captured_step import CannotCaptureError, Work


class Tape(TorchDispatchMode):
    """Writes down every operation while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise CannotCaptureError("the step reads a tensor from Python")
        output = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, output))
        return output

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, output in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(output), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.detach().copy_(new)


class TapeRecorder:
    """A `Recorder` for a CPU."""

    def __init__(self) -> None:
        self.warm_ups = self.recorded = self.replays = 0

    def warm_up(self, work: Work, passes: int) -> None:
        for _ in range(passes):
            work()
            self.warm_ups += 1

    def record(self, work: Work) -> Work:
        tape = Tape()
        with tape:
            work()
        self.recorded += 1

        def replay() -> None:
            tape.replay()
            self.replays += 1

        return replay
