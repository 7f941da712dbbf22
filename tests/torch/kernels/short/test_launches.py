"""What a launch hands over, with a driver that only listens. (What kernels make of it is tested on a GPU.)"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attentiondrop.errors import BackendError
from attentiondrop.torch.kernels.short import launches, run_kernels
from attentiondrop.torch.kernels.short.plans import Plan, written
from attentiondrop.torch.kernels.short.variants import Device

NOTHING = (None, None, None, None, None)
PLAN = Plan("largest", 5, scale=0.125)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """The arguments of all launches on tensors of a CPU, whose device has the number -1."""
    found: list[tuple[Any, ...]] = []

    def launch(*options: Any) -> tuple[int]:
        layout = "@14Q12I3q6f10i4I" if options[0] == 1 else "@19Q24I3q6f10i2I"
        found.append(struct.unpack(layout, run_kernels._space.arguments.raw[: struct.calcsize(layout)]))
        return (0,)

    names = [f"_{way}_{what}" for way in ("forward", "backward") for what in ("kernel", "launch")]
    caches = [getattr(launches, name) for name in (*names, "ready_forward", "ready_backward")]
    for cache in caches:
        cache.cache_clear()
    loaded = {
        "device_of": lambda index: Device(90, 232448, 233472),
        "processors": lambda index: 132,
        "_loaded": lambda kernel, variant, device: (kernel, 1 if kernel.name == "forward" else 2),
    }
    for name, fake in loaded.items():
        monkeypatch.setattr(launches, name, fake)
    monkeypatch.setattr(run_kernels, "_driver", lambda: SimpleNamespace(cuLaunchKernel=launch))
    monkeypatch.setattr(run_kernels, "_stream", lambda device: 0)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(run_kernels, "enter", lambda device: None)
    monkeypatch.setattr(run_kernels, "empty_on_gpu", torch._C._dynamo.guards._empty_strided_cpu)
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
        output, notes = results = run_kernels.forward(q, k, v, *NOTHING, written(PLAN))
        assert heard[-1][:5] == (*(x.data_ptr() for x in (q, k, v)), *(x.data_ptr() for x in results))
        gradients = run_kernels.backward(output, q, k, v, output, notes, *NOTHING, written(PLAN))
        assert heard[-1][:5] == tuple(x.data_ptr() for x in (output, q, k, v, output))
        assert heard[-1][16:19] == tuple(x.data_ptr() for x in gradients)
        assert all(one.stride() == torch.empty_like(x).stride() for one, x in zip(gradients, (q, k, v), strict=True))
    assert heard[0][14:] == heard[2][14:] and heard[1][19:] == heard[3][19:]
    assert heard[0][14:26] == tuple(2 * step for x in (q, k, v, output) for step in x.stride()[:3])
    places = (output, q, k, v, output, *gradients)
    assert heard[1][19:43] == tuple(2 * step for x in places for step in x.stride()[:3])


def test_what_begins_elsewhere_is_copied(heard: list[tuple[Any, ...]]) -> None:
    """The same shapes and strides as before, at other addresses."""
    run_kernels.forward(*packed(), *NOTHING, written(PLAN))
    q, k, v = packed(shift=1)
    output, notes = run_kernels.forward(q, k, v, *NOTHING, written(PLAN))
    assert not {x.data_ptr() for x in (q, k, v)} & set(heard[-1][:3]) and not any(x % 16 for x in heard[-1][:3])
    assert heard[-1][14:17] == tuple(2 * step for step in torch.empty(q.shape).stride()[:3])
    run_kernels.backward(output, q, k, v, output, notes, *NOTHING, written(PLAN))
    assert not any(x % 16 for x in (*heard[-1][:5], *heard[-1][16:19]))


def test_what_lies_too_far_apart_is_copied(heard: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels take strides of 31 bits: here of fewer, so that joint queries, keys and values are too far apart."""
    sample = 2 * 2 * 20 * 64  # bytes
    monkeypatch.setattr(launches, "FARTHEST", sample)
    q, k, v = packed()
    output, notes = run_kernels.forward(q, k, v, *NOTHING, written(PLAN))
    assert not {x.data_ptr() for x in (q, k, v)} & set(heard[-1][:3])
    gradients = run_kernels.backward(output, q, k, v, output, notes, *NOTHING, written(PLAN))
    assert not {x.data_ptr() for x in (q, k, v)} & set(heard[-1][:4])
    assert all(one.stride() == torch.empty_like(x).stride() for one, x in zip(gradients, (q, k, v), strict=True))
    assert max(heard[0][14:26]) == max(heard[1][19:43]) == sample


def test_other_plans_are_other_launches(heard: list[tuple[Any, ...]]) -> None:
    q, k, v = packed()
    for plan in (PLAN, PLAN._replace(rate=0.5, stream=3), PLAN._replace(hide=True)):
        run_kernels.forward(q, k, v, *NOTHING, written(plan))
    assert heard[1][31] == 0.5 and heard[1][40] == 3 and heard[0][31] == 0.0 != heard[1][31]
    assert len({one[5] - one[4] for one in heard}) == 2  # hiding notes more, before the bit map


def test_every_tensor_has_its_place(heard: list[tuple[Any, ...]]) -> None:
    q, k, v = packed()
    plan = written(Plan("largest", 5, hide=True, scale=0.125))
    seed, gate, dropout_gate, blur_gate = (torch.zeros(()) for _ in range(4))
    visible = torch.ones(2, 1, 1, 20, dtype=torch.bool)
    extras = seed, gate, dropout_gate, blur_gate, visible
    wanted = [x.data_ptr() for x in (seed, gate, dropout_gate, visible, blur_gate)]
    output, notes = run_kernels.forward(q, k, v, *extras, plan)
    assert list(heard[-1][9:14]) == wanted
    gradients = run_kernels.backward(output, q, k, v, output, notes, *extras, plan)
    assert list(heard[-1][11:19]) == [*wanted, *(x.data_ptr() for x in gradients)]
    parts = [place - notes.data_ptr() for place in heard[-1][5:9]]
    assert parts == [place - notes.data_ptr() for place in heard[0][4:8]]
    lines = 2 * 2 * 20
    assert parts[2] == 4 * lines and parts[1] == parts[3] == 8 * lines == 640, "log-sum-exp, kept keys, bit map"
    assert heard[-1][10] == 0, "there is no band"


@pytest.mark.parametrize("change", ["gradient", "last dimension", "one head"])
def test_gradients_are_in_the_memory_order_of_their_tensors(change: str, heard: list[tuple[Any, ...]]) -> None:
    """Kernels write them in another order, if rows are not made of whole pieces there."""
    q, k, v = packed()
    if change == "last dimension":
        q = q.transpose(2, 3).contiguous().transpose(2, 3)
    if change == "one head":  # a dimension of one number may have any stride
        q, k, v = (x[:, :1].contiguous().as_strided((2, 1, 20, 64), (1280, 1, 64, 1)) for x in (q, k, v))
    output, notes = run_kernels.forward(q, k, v, *NOTHING, written(PLAN))
    grad = torch.ones(()).bfloat16().expand(output.shape) if change == "gradient" else output
    gradients = run_kernels.backward(grad, q, k, v, output, notes, *NOTHING, written(PLAN))
    for one, x in zip(gradients, (q, k, v), strict=True):
        assert one.shape == x.shape and one.stride() == torch.empty_like(x).stride()
    assert not any(number % 8 for number in (*heard[-1][19:31], *heard[-1][34:43]))
    assert heard[-1][1] == q.data_ptr() or change != "gradient", "only what needs it is copied"


def test_without_queries_nothing_is_launched(heard: list[tuple[Any, ...]]) -> None:
    q, k, v = packed()
    few = q[:, :, :0]
    output, notes = run_kernels.forward(few, k, v, *NOTHING, written(PLAN))
    gradients = run_kernels.backward(output, few, k, v, output, notes, *NOTHING, written(PLAN))
    assert output.shape == few.shape == gradients[0].shape and not heard
    assert not any(bool(one.any()) for one in gradients[1:])


def test_another_device_becomes_the_current_one(heard: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is found on the current device, so that the tensors must be there."""
    now = [3]

    class Guard:
        def __init__(self, device: int) -> None:
            self.device = device

        def __enter__(self) -> None:
            now.append(self.device)

        def __exit__(self, *_: Any) -> None:
            now.pop()

    def empty(*args: Any) -> Tensor:
        assert now[-1] == -1
        return torch._C._dynamo.guards._empty_strided_cpu(*args)

    monkeypatch.setattr(torch.cuda, "device", Guard)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: now[-1], raising=False)
    monkeypatch.setattr(run_kernels, "empty_on_gpu", empty)
    q, k, v = packed()
    output, notes = run_kernels.forward(q, k, v, *NOTHING, written(PLAN))
    run_kernels.backward(output, q, k, v, output, notes, *NOTHING, written(PLAN))
    assert len(heard) == 2 and now == [3]


def test_a_launch_that_fails_is_an_error(heard: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_kernels, "_driver", lambda: SimpleNamespace(cuLaunchKernel=lambda *_: (700,)))
    with pytest.raises(BackendError, match="could not be launched: 700"):
        run_kernels.forward(*packed(), *NOTHING, written(PLAN))
