"""The kernels for short rows on a CPU: g++ compiles the sources, with other instructions (see `emulated`)."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attentiondrop.torch.kernels.short import build, launches, run_kernels
from attentiondrop.torch.kernels.short.variants import Device, Kernel

COMPILER = shutil.which("g++")
_OWN = Path(__file__).parent / "emulated"
#: As in `test_short_variants`.
DEVICES = {
    "A100": Device(80, 163 * 1024, 164 * 1024),
    "A10": Device(86, 99 * 1024, 100 * 1024),
    "H200": Device(90, 227 * 1024, 228 * 1024),
}


def _unwritten(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory in which an element that no kernel wrote shows: NaN, or its bits."""
    memory = torch.empty_strided(sizes, strides, dtype=dtype)
    return memory.fill_(torch.nan if dtype.is_floating_point else 0x7FC00000)


class Emulator:
    """A device that is not there. Two blocks run, so that each has several units."""

    def __init__(self, folder: Path, device: Device) -> None:
        self.folder = folder
        self.device = device
        #: The names of the kernels that ran.
        self.ran: list[str] = []
        self._loaded: list[tuple[Kernel, Any]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let launches on tensors of a CPU (whose device has the number -1) run here."""
        for way in ("forward", "backward"):
            # (New caches: nothing of this device is left after the test.)
            for module, name in (
                (launches, f"_{way}_kernel"),
                (launches, f"_{way}_launch"),
                (run_kernels, f"ready_{way}"),
            ):
                fresh = functools.lru_cache(maxsize=None)(getattr(module, name).__wrapped__)
                monkeypatch.setattr(module, name, fresh)
        monkeypatch.setattr(run_kernels, "empty_on_gpu", _unwritten)
        monkeypatch.setattr(launches, "device_of", lambda index: self.device)
        monkeypatch.setattr(launches, "processors", lambda index: 2)
        monkeypatch.setattr(launches, "_loaded", lambda kernel, variant, device: (kernel, self.load(kernel)))
        monkeypatch.setattr(run_kernels, "_driver", lambda: SimpleNamespace(cuLaunchKernel=self.launch))
        monkeypatch.setattr(run_kernels, "_stream", lambda device: 0)
        monkeypatch.setattr(run_kernels, "enter", lambda device: None)
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)

    def load(self, kernel: Kernel) -> int:
        """Compile a kernel; its handle is its place in a list."""
        folder = self.folder / str(len(self._loaded))
        folder.mkdir(parents=True)
        for name, text in build.sources().items():
            (folder / name).write_text(text)
        for file in _OWN.iterdir():
            shutil.copy(file, folder)
        macros = [f"-D{name}={value}" for name, value in kernel.macros]
        assert COMPILER is not None
        # `-ffp-contract=off`: what is rounded twice on a GPU is rounded twice here.
        options = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-Wl,-Bsymbolic", "-ffp-contract=off", *macros]
        options += ["-D__CUDA_ARCH__=900", f"-DKERNEL={kernel.name}", f'-DSOURCE="{kernel.name}.cu"']
        subprocess.run([COMPILER, *options, "run_blocks.cpp", "-o", "kernel.so"], cwd=folder, check=True)
        self._loaded.append((kernel, ctypes.CDLL(str(folder / "kernel.so"))))
        return len(self._loaded) - 1

    def launch(self, handle: int, blocks: int, *rest: Any) -> tuple[int]:
        kernel, library = self._loaded[handle]
        library.run(run_kernels._space.arguments, blocks, kernel.threads)
        self.ran.append(kernel.name)
        return (0,)
