"""Compile a kernel with NVRTC, keep the result on disk, and load it.

Why cuda-bindings: torch installs it together with NVRTC, so users need nothing else. (cuda.core is nicer to write with,
but would be a dependency of its own.) What is kept on disk is found by the sources, the constants, the architecture,
and the versions of NVRTC and of the driver.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ....errors import BackendError
from .variants import Device, Kernel

_STANDARD = "--std=c++17"


def why_not_built() -> str | None:
    """The reason why kernels cannot be compiled here at all, or None."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "cuda-bindings is not installed (it comes with torch for CUDA)"
    return None


@functools.cache
def sources() -> dict[str, str]:
    """All source files by name."""
    folder = resources.files(__package__) / "cuda"
    return {file.name: file.read_text() for file in folder.iterdir() if file.name.endswith((".cu", ".cuh"))}


def compile_kernel(kernel: Kernel, architecture: str) -> tuple[bytes, str]:
    """The machine code of a kernel for an architecture such as "sm_90", and what the compiler said.

    For "compute_80", it is PTX instead. The driver of any newer GPU translates that.
    """
    from cuda.bindings import nvrtc

    texts = sources()
    headers = sorted(name for name in texts if name.endswith(".cuh"))
    name = f"{kernel.name}.cu"
    program = _checked(
        nvrtc.nvrtcCreateProgram(
            texts[name].encode(),
            name.encode(),
            len(headers),
            [texts[header].encode() for header in headers],
            [header.encode() for header in headers],
        )
    )
    options = [option.encode() for option in _options(kernel, architecture)]
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        said = log.rstrip(b"\0").decode()
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BackendError(f"NVRTC could not compile {name} for {architecture}: {said}")
        if architecture.startswith("compute_"):
            code = bytes(_checked(nvrtc.nvrtcGetPTXSize(program)))
            _checked(nvrtc.nvrtcGetPTX(program, code))
        else:
            code = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
            _checked(nvrtc.nvrtcGetCUBIN(program, code))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return code, said


def _options(kernel: Kernel, architecture: str) -> list[str]:
    macros = [f"-D{name}={value}" for name, value in kernel.macros]
    return [f"--gpu-architecture={architecture}", _STANDARD, "--ptxas-options=-v", *macros]


def machine_code(kernel: Kernel, architecture: str) -> bytes:
    """The machine code of a kernel, from the disk if it was compiled before."""
    path = _folder() / f"{kernel.name}-{_digest(kernel, architecture)}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        pass
    code, _ = compile_kernel(kernel, architecture)
    _keep(path, code)
    return code


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "attentiondrop" / "kernels"


def _digest(kernel: Kernel, architecture: str) -> str:
    from cuda.bindings import driver, nvrtc

    versions = (_checked(nvrtc.nvrtcVersion()), _checked(driver.cuDriverGetVersion()))
    parts = [*sorted(sources().items()), _options(kernel, architecture), versions]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _keep(path: Path, code: bytes) -> None:
    """Write a file that others see whole or not at all. A disk that is full or read-only only costs time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
    except OSError:
        pass


def _checked(answer: tuple[Any, ...]) -> Any:
    """The value that a call of cuda-bindings returned, or an error."""
    result, *values = answer
    if int(result) != 0:
        raise BackendError(f"a call of the CUDA driver or of NVRTC failed: {result!r}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


@functools.cache
def device_of(index: int) -> Device:
    """What a CUDA device allows."""
    found = torch.cuda.get_device_properties(index)
    capability = 10 * found.major + found.minor
    # torch has names for these since 2.3 or so; they do not depend on what runs on the device.
    return Device(capability, found.shared_memory_per_block_optin, found.shared_memory_per_multiprocessor)


@functools.cache
def processors(index: int) -> int:
    """The number of multiprocessors of a CUDA device."""
    count: int = torch.cuda.get_device_properties(index).multi_processor_count
    return count


def enter(index: int) -> None:
    """Make the context of a CUDA device, which torch uses, that of this thread: a new thread has none."""
    from cuda.bindings import driver

    _checked(driver.cuCtxSetCurrent(_context(index)))


@functools.cache
def _context(index: int) -> Any:
    from cuda.bindings import driver

    torch.cuda.init()
    return _checked(driver.cuDevicePrimaryCtxRetain(_checked(driver.cuDeviceGet(index))))


@functools.cache
def load(kernel: Kernel, index: int) -> int:
    """The handle of a kernel on a CUDA device, which is the current one."""
    from cuda.bindings import driver

    enter(index)
    module = _checked(driver.cuModuleLoadData(machine_code(kernel, device_of(index).architecture)))
    function = _checked(driver.cuModuleGetFunction(module, kernel.name.encode()))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked(driver.cuFuncSetAttribute(function, attribute, kernel.shared_bytes))
    return int(function)
