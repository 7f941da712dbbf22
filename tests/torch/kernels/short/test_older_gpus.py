"""The kernels of older GPUs, translated by the driver for the GPU at hand, against the oracle with identical draws.

They have less shared memory and fewer instructions than compute capability 9.0: other stages, shorter runs of rows, and no
matrix instructions of warpgroups. (What only the compiler for the older GPU itself could do wrong does not show here.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from parity import Case
from worst import Worst

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch.kernels.short import build, launches
from attentiondrop.torch.kernels.short.variants import Device, Kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Older(Device):
    """An older GPU, whose code the driver translates."""

    @property
    def dtype(self) -> torch.dtype:
        """What it is tested with: one of the two is enough for each."""
        return torch.bfloat16 if self.capability == 80 else torch.float16

    @property
    def architecture(self) -> str:
        return f"compute_{self.capability}"


#: With the shared memory of a block and of a multiprocessor, from the tables of the CUDA programming guide.
A100 = Older(80, 163 * 1024, 164 * 1024)
A10 = Older(86, 99 * 1024, 100 * 1024)
L40 = Older(89, 99 * 1024, 100 * 1024)
SPECS: list[Spec] = [
    ad.HardMasking(p=0.4, k=5),
    ad.DropKey(p=0.4),
    ad.Compose([ad.HardMasking(p=0.5, k=3, fill="-inf"), ad.AttentionDropout(p=0.3)]),
    ad.DropAttention(p=0.5),
    ad.Compose([ad.BlurSmoothing(sigma_max=1.0), ad.AttentionDropout(0.1)]),
]
CASES = [
    Case("ViT", rows=197, columns=197),
    Case("long", rows=256, columns=256),
    Case("two tiles, causal", rows=20, columns=20, is_causal=True),
    Case("grouped, key padding", heads=4, key_heads=2, rows=140, columns=100, mask="keys"),
]


@pytest.fixture(autouse=True)
def only_this_path(taken_paths: set[str]) -> Iterator[None]:
    """Whatever takes another path than the kernels for short rows fails, apart from SDPA, which `Worst` compares with."""
    yield
    assert taken_paths <= {"sdpa", "short rows"}


@pytest.fixture
def loaded(older: Older, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Kernel]]:
    """The kernels that a test has loaded. They are those of an older GPU."""
    major, minor = torch.cuda.get_device_capability()
    if 10 * major + minor <= older.capability:
        pytest.skip(f"needs a GPU newer than compute capability {older.capability / 10}")
    if not driver_can_translate():
        pytest.skip("the driver is older than the compiler, so it cannot read its PTX")
    kernels: list[Kernel] = []
    load = build.load

    def noted(kernel: Kernel, index: int) -> int:
        kernels.append(kernel)
        return load(kernel, index)

    for module in (build, launches):
        monkeypatch.setattr(module, "device_of", lambda index: older)
    monkeypatch.setattr(launches, "load", noted)
    forget()
    yield kernels
    forget()


def driver_can_translate() -> bool:
    from cuda.bindings import driver, nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    _, version = driver.cuDriverGetVersion()
    return 1000 * int(major) + 10 * int(minor) <= int(version)


def forget() -> None:
    """Kernels and launches that were found before are those of another device."""
    build.load.cache_clear()
    for found in vars(launches).values():
        if getattr(found, "__module__", None) == launches.__name__ and hasattr(found, "cache_clear"):
            found.cache_clear()


@pytest.mark.parametrize("older", [A100, A10, pytest.param(L40, marks=pytest.mark.slow)], ids=["A100", "A10", "L40"])
@pytest.mark.parametrize("size", [64, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_older_gpus(spec: Spec, size: int, older: Older, loaded: list[Kernel]) -> None:
    worst = Worst()
    for case in CASES:
        before = len(loaded)
        worst.add(spec, replace(case, size=size, value_size=size), older.dtype, "cuda")
        names = [kernel.name for kernel in loaded[before:]]
        assert "forward" in names and "backward" in names and "backward_wgmma" not in names, (str(case), names)
    worst.check()
    assert all(kernel.shared_bytes <= older.block_bytes for kernel in loaded)
