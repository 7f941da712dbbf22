"""Work on a GPU, recorded as a CUDA graph."""

from __future__ import annotations

import functools
import gc
import os
import sys
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .captured_step import Work

#: Variables with which users set up torch's memory. And that of MPS: growing segments were not tried with it.
_LEAVE_MEMORY_ALONE = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_MPS_PIPE_DIRECTORY")


class CudaRecorder:
    """Records on a stream of its own. All graphs share one pool of memory, since only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _stream_of(device)
        self._graphs: list[weakref.ref[torch.cuda.CUDAGraph]] = []
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Work, passes: int) -> None:
        """Do the work `passes` times, and once more in a mode in which waiting for the GPU is an error.

        A capture fails at the same places, but leaves the generator and the allocator in a state that is hard to mend.
        """
        with self._on_stream():
            for _ in range(passes):
                work()
            mode = torch.cuda.get_sync_debug_mode()
            _set_sync_debug_mode("error")
            try:
                work()
            finally:
                _set_sync_debug_mode(mode)

    def record(self, work: Work) -> Work:
        """Capture the work, which does not run then."""
        if not self._graphs:
            gc.collect()  # frees what earlier runs have left on the GPU; only once, since it takes long
        _forget_workspaces()
        generator = torch.cuda.default_generators[
            torch.cuda.current_device() if self._device.index is None else self._device.index
        ]
        state = generator.get_state()
        if not any(known() for known in self._graphs):
            self._pool = torch.cuda.graph_pool_handle()  # torch gives a pool up with its last graph
        graph = torch.cuda.CUDAGraph()
        try:
            # In this thread only: others may load data meanwhile.
            with (
                self._on_stream(),
                _nothing_collected(),
                _growing_segments(),
                torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                work()
        except Exception as error:
            _end_capturing(generator, state)
            # The end of a capture that failed has an error of its own, which says less than the first one.
            raise (error.__context__ or error) from None
        finally:
            _forget_workspaces()
        self._graphs.append(weakref.ref(graph))
        return graph.replay

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """On our stream, after what the current one has to do; and the current one goes on after ours."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)


@functools.cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device to record on. The runs of a process share it: torch keeps memory for each stream."""
    return torch.cuda.Stream(device)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Within, Python does not search for garbage. What it frees may be a graph, which would break a capture."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def _growing_segments() -> Iterator[None]:
    """Within, torch takes memory in segments that grow instead of many of fixed sizes, so less of it stays unused.

    The pool of a graph shares nothing with the rest of the memory: what is unused in it is lost. Only memory changes,
    never a result. If users have settings of their own, these stay, because torch would forget them.
    """
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if change is None or sys.platform != "linux" or any(map(os.environ.get, _LEAVE_MEMORY_ALONE)):
        yield
        return
    change("expandable_segments:True")
    try:
        yield
    finally:
        change("expandable_segments:False")


def _set_sync_debug_mode(mode: int | str) -> None:
    """Say what waiting for the GPU does. torch warns that this is a prototype, which users did not ask for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


def _forget_workspaces() -> None:
    """Give back the memory of cuBLAS for each stream (as inductor does for its own graphs).

    Before a capture: it is not needed twice. After it: what the graph uses belongs to the graph.
    """
    forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if forget is not None:
        forget()


def _end_capturing(generator: torch.Generator, state: torch.Tensor) -> None:
    """Free the generator from a capture that failed: torch leaves it as if the capture went on."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh)
