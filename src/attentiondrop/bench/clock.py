"""Measure seconds and bytes of a piece of work on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Work = Callable[[], object]
Clock = Callable[[Work], float]

#: How many cycles the GPU waits before timed work: about a millisecond, in which the CPU queues the work.
_CYCLES = 2_000_000


def clock_for(device: str) -> Clock:
    """The clock of a device: its own events on a GPU, the wall clock otherwise."""
    return _cuda_seconds if device == "cuda" else _wall_seconds


def peak_extra(work: Work, device: str) -> int | None:
    """Bytes that `work` needs at its peak beyond what was allocated before; None on a CPU, where torch counts none."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def captured(work: Work) -> Work:
    """The same work as the replay of a CUDA graph, without the CPU's part.

    Each graph has its own memory pool. A shared pool would be freed with the graphs of the first shape, and every later
    capture would fail. Each is recorded on a stream of its own: cuBLAS has a workspace for each stream, and graphs that
    share one must not run at the same time.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        work()
    return Replay(graph, work)


@dataclass(frozen=True)
class Replay:
    """A captured graph. It reads tensors that belong to the work, so it keeps the work alive."""

    graph: torch.cuda.CUDAGraph
    work: Work

    def __call__(self) -> None:
        """Do the work again."""
        self.graph.replay()


def _wall_seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _cuda_seconds(work: Work) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    # The work is queued behind a pause, so the time of short work does not depend on how fast the CPU launches it.
    torch.cuda._sleep(_CYCLES)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1000
