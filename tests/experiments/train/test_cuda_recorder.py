"""The order of what a `CudaRecorder` asks of torch, with a `torch.cuda` that does nothing. Graphs are tested on a GPU."""

from __future__ import annotations

import gc
import warnings
from contextlib import nullcontext
from unittest import mock

import pytest
import torch

from attentiondrop.experiments.train import cuda_recorder
from attentiondrop.experiments.train.cuda_recorder import CudaRecorder


class Graph:
    """As torch's context: ending a capture in which something failed raises an error of its own."""

    used: list[dict] = []

    def __init__(self, graph, **options) -> None:
        Graph.used.append(options)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, trace) -> None:
        if kind is not None:
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch):
    Graph.used.clear()
    found = mock.MagicMock(mode=0, generator=mock.MagicMock(), pools=iter(range(9)))
    fakes = {
        "Stream": mock.MagicMock(),
        "stream": lambda stream: nullcontext(),
        "current_stream": mock.MagicMock(),
        "current_device": lambda: 0,
        "default_generators": [found.generator],
        "graph_pool_handle": lambda: next(found.pools),
        "CUDAGraph": type("Empty", (), {"replay": lambda self: None}),
        "graph": Graph,
        "get_sync_debug_mode": lambda: found.mode,
        "set_sync_debug_mode": lambda mode: setattr(found, "mode", mode),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake, raising=False)
    monkeypatch.setattr(torch, "Generator", mock.MagicMock())
    cuda_recorder._stream_of.cache_clear()
    yield found
    cuda_recorder._stream_of.cache_clear()


def test_the_runs_of_a_process_share_a_stream(cuda) -> None:
    device = torch.device("cuda", 0)
    assert CudaRecorder(device)._stream is CudaRecorder(device)._stream


def test_the_last_pass_of_a_warm_up_refuses_to_wait_for_the_gpu(cuda) -> None:
    seen: list = []
    CudaRecorder(torch.device("cuda")).warm_up(lambda: seen.append(cuda.mode), 3)
    assert seen == [0, 0, 0, "error"] and cuda.mode == 0

    def waiting() -> None:
        if cuda.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(RuntimeError, match="called a synchronizing"):
        CudaRecorder(torch.device("cuda")).warm_up(waiting, 3)
    assert cuda.mode == 0


def test_nobody_hears_that_the_mode_is_a_prototype(cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def set_mode(mode: object) -> None:
        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        CudaRecorder(torch.device("cuda")).warm_up(lambda: warnings.warn("of the step", stacklevel=1), 0)
    assert [str(one.message) for one in heard] == ["something else", "of the step", "something else"]


def test_a_capture_that_fails_says_what_failed_first_and_frees_the_generator(cuda) -> None:
    def broken() -> None:
        raise ValueError("the first reason")

    with pytest.raises(ValueError, match="the first reason"):
        CudaRecorder(torch.device("cuda")).record(broken)
    cuda.generator.graphsafe_set_state.assert_called_once()


def test_graphs_share_a_pool_as_long_as_one_of_them_lives(cuda) -> None:
    recorder = CudaRecorder(torch.device("cuda", 0))
    first = recorder.record(lambda: None)
    second = recorder.record(lambda: None)
    del first
    third = recorder.record(lambda: None)
    del second, third
    recorder.record(lambda: None)
    pools = [options["pool"] for options in Graph.used]
    assert pools[0] == pools[1] == pools[2] != pools[3]
    assert all(options["capture_error_mode"] == "thread_local" for options in Graph.used)
    cuda.generator.graphsafe_set_state.assert_not_called()


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_before_the_first_capture_and_never_in_one(
    cuda, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list = []
    monkeypatch.setattr(gc, "collect", lambda: seen.append("collect"))
    recorder = CudaRecorder(torch.device("cuda", 0))
    if not enabled:
        gc.disable()
    try:
        for _ in range(2):
            recorder.record(lambda: seen.append(gc.isenabled()))
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
    assert seen == ["collect", False, False]


@pytest.mark.parametrize("fails", [False, True])
def test_memory_grows_in_place_during_a_capture_only(cuda, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    settings: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", settings.append, raising=False)
    monkeypatch.setattr(cuda_recorder.sys, "platform", "linux")
    for name in cuda_recorder._LEAVE_MEMORY_ALONE:
        monkeypatch.delenv(name, raising=False)
    during: list[list[str]] = []

    def work() -> None:
        during.append(list(settings))
        if fails:
            raise RuntimeError("not in a capture")

    recorder = CudaRecorder(torch.device("cuda"))
    if fails:
        with pytest.raises(RuntimeError, match="not in a capture"):
            recorder.record(work)
    else:
        recorder.record(work)
    assert during == [["expandable_segments:True"]]
    assert settings == ["expandable_segments:True", "expandable_segments:False"]


@pytest.mark.parametrize("name", cuda_recorder._LEAVE_MEMORY_ALONE)
def test_memory_is_left_alone(cuda, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    settings: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", settings.append, raising=False)
    monkeypatch.setattr(cuda_recorder.sys, "platform", "linux")
    monkeypatch.setenv(name, "max_split_size_mb:64")
    CudaRecorder(torch.device("cuda")).record(lambda: None)
    assert not settings
