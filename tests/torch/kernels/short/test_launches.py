"""What a launch hands over, with a driver that only listens. (What kernels make of it is tested on a GPU.)"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attentiondrop.torch.kernels.short import run_kernels
from attentiondrop.torch.kernels.short.plans import Extras, Plan
from attentiondrop.torch.kernels.short.variants import Device

NOTHING = Extras(None, None, None, None, None)
PLAN = Plan("largest", 5, scale=0.125)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """The arguments of all launches on tensors of a CPU, whose device has the number -1."""
    found: list[tuple[Any, ...]] = []

    def launch(*options: Any) -> tuple[int]:
        layout = "@14Q12I3q6f10i4I" if options[0] == 1 else "@19Q24I3q6f10i2I"
        found.append(struct.unpack(layout, run_kernels._space.arguments.raw[: struct.calcsize(layout)]))
        return (0,)

    fakes = {
        "device_of": lambda index: Device(90, 232448, 233472),
        "processors": lambda index: 132,
        "_loaded": lambda kernel, variant, device: (kernel, 1 if kernel.name == "forward" else 2),
        "_driver": lambda: SimpleNamespace(cuLaunchKernel=launch),
        "_stream": lambda device: 0,
    }
    caches = [
        getattr(run_kernels, f"_{way}_{what}") for way in ("forward", "backward") for what in ("kernel", "launch")
    ]
    for cache in caches:
        cache.cache_clear()
    for name, fake in fakes.items():
        monkeypatch.setattr(run_kernels, name, fake)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(run_kernels, "enter", lambda device: None)
    yield found
    run_kernels._space.entered.discard(-1)
    for cache in caches:
        cache.cache_clear()


def packed(shift: int = 0) -> tuple[Tensor, ...]:
    """Queries, keys and values in one tensor, which begins `shift` numbers after a multiple of 16 bytes."""
    memory = torch.randn(2 * 20 * 3 * 2 * 64 + 8).bfloat16()
    return memory[shift : memory.numel() - 8 + shift].view(2, 20, 3, 2, 64).permute(2, 0, 3, 1, 4).unbind()


def test_a_launch_like_an_earlier_one_gets_its_own_addresses(heard: list[tuple[Any, ...]]) -> None:
    for _ in range(2):
        q, k, v = packed()
        results = run_kernels.forward(q, k, v, NOTHING, PLAN)
        assert heard[-1][:5] == (*(x.data_ptr() for x in (q, k, v)), *(x.data_ptr() for x in results))
        gradients = run_kernels.backward(results.output, q, k, v, results, NOTHING, PLAN)
        assert heard[-1][:5] == tuple(x.data_ptr() for x in (results.output, q, k, v, results.output))
        assert heard[-1][16:19] == tuple(x.data_ptr() for x in gradients)
        assert all(one.stride() == torch.empty_like(x).stride() for one, x in zip(gradients, (q, k, v), strict=True))
    assert heard[0][14:] == heard[2][14:] and heard[1][19:] == heard[3][19:]
    assert heard[0][14:26] == tuple(2 * step for x in (q, k, v, results.output) for step in x.stride()[:3])
    places = (results.output, q, k, v, results.output, *gradients)
    assert heard[1][19:43] == tuple(2 * step for x in places for step in x.stride()[:3])


def test_what_begins_elsewhere_is_copied(heard: list[tuple[Any, ...]]) -> None:
    """The same shapes and strides as before, at other addresses."""
    run_kernels.forward(*packed(), NOTHING, PLAN)
    q, k, v = packed(shift=1)
    results = run_kernels.forward(q, k, v, NOTHING, PLAN)
    assert not {x.data_ptr() for x in (q, k, v)} & set(heard[-1][:3]) and not any(x % 16 for x in heard[-1][:3])
    assert heard[-1][14:17] == tuple(2 * step for step in torch.empty(q.shape).stride()[:3])
    run_kernels.backward(results.output, q, k, v, results, NOTHING, PLAN)
    assert not any(x % 16 for x in (*heard[-1][:5], *heard[-1][16:19]))


def test_what_lies_too_far_apart_is_copied(heard: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels take strides of 31 bits: here of fewer, so that joint queries, keys and values are too far apart."""
    sample = 2 * 2 * 20 * 64  # bytes
    monkeypatch.setattr(run_kernels, "FARTHEST", sample)
    q, k, v = packed()
    results = run_kernels.forward(q, k, v, NOTHING, PLAN)
    assert not {x.data_ptr() for x in (q, k, v)} & set(heard[-1][:3])
    gradients = run_kernels.backward(results.output, q, k, v, results, NOTHING, PLAN)
    assert not {x.data_ptr() for x in (q, k, v)} & set(heard[-1][:4])
    assert heard[-1][16:19] == tuple(x.data_ptr() for x in gradients)  # which are made anew, without gaps
    assert max(heard[0][14:26]) == max(heard[1][19:43]) == sample


def test_other_plans_are_other_launches(heard: list[tuple[Any, ...]]) -> None:
    q, k, v = packed()
    for plan in (PLAN, PLAN._replace(rate=0.5, stream=3), PLAN._replace(hide=True)):
        run_kernels.forward(q, k, v, NOTHING, plan)
    assert heard[1][31] == 0.5 and heard[1][40] == 3 and heard[0][31] == 0.0 != heard[1][31]
    assert len({one[5] - one[4] for one in heard}) == 2  # hiding notes more, before the bit map
