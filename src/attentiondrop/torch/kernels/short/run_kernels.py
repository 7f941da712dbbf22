"""Launch the kernels for short rows.

A kernel has one argument, a structure. Packing it takes little time, and so does a launch through the driver.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import threading
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....errors import BackendError
from .build import device_of, enter, load, processors
from .plans import Extras, NotePlaces, Plan, Results, empty_results, places_of, results_of
from .variants import FARTHEST, Kernel, Variant, backward_of, forward_of

LOG2_E = math.log2(math.e)
#: How sigma of a blur is drawn, as the sources count it.
SAMPLINGS = {"batch": 0, "sample": 1, "head": 2}


def _blur(extras: Extras, plan: Plan) -> Any:
    """The blur as the kernels of the band take it."""
    from ..blur.rows import Blur

    numbers = plan.blur_stream, plan.sampling, plan.sigma_min, plan.sigma_max, 2 * plan.radius + 1, plan.renormalize
    return Blur(extras.seed, extras.blur_gate, *numbers)  # type: ignore[arg-type]  # a blur always has a seed


def _band_of(notes: Tensor, places: NotePlaces, shape: tuple[int, int, int, int]) -> Tensor:
    return notes[places.band :][: math.prod(shape)].view(torch.float32).view(shape)


def forward(q: Tensor, k: Tensor, v: Tensor, extras: Extras, plan: Plan) -> Results:
    """Attention of rows with at most `MOST_KEYS` keys."""
    if q.numel() == 0:
        return empty_results(q, k, plan)
    seed, gate, dropout_gate, blur_gate, visible = extras
    device, shape = q.get_device(), q.shape
    told = None if visible is None else _visible_strides(visible)
    pointers, strides = _located((q, k, v))
    launch = _forward_launch(device, q.dtype, shape, k.shape, strides, told, plan)
    if not launch.fits or _are_shifted(pointers):
        q, k, v = _aligned(q), _aligned(k), _aligned(v)
        pointers, strides = _located((q, k, v))
        launch = _forward_launch(device, q.dtype, shape, k.shape, strides, told, plan)
    results = results_of(q, launch.places.end)
    output, notes = results
    if plan.has_band:
        from ..blur.band import band_logits  # imports Triton

        batch, heads, rows, _ = shape
        band = _band_of(notes, launch.places, (batch, heads, plan.radius, rows))
        # The kernels multiply by the scale themselves.
        band_logits(q, k, band, visible, _blur(extras, plan), 1.0)
    places = _FORWARD.pointers.pack(
        *pointers, output.data_ptr(), *launch.places.pointers(notes),
        _pointer(seed), _pointer(gate), _pointer(dropout_gate), _pointer(visible), _pointer(blur_gate),
    )  # fmt: skip
    _launch(device, launch.kernel, launch.handle, launch.blocks, places + launch.rest)
    return results


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, results: Results, extras: Extras, plan: Plan
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, in their memory orders."""
    d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    output, notes = results
    if output.numel() == 0:
        return d_q, d_k.zero_(), d_v.zero_()
    wanted = (d_q, d_k, d_v)
    seed, gate, dropout_gate, blur_gate, visible = extras
    device, shape = q.get_device(), q.shape
    told = None if visible is None else _visible_strides(visible)
    tensors: tuple[Tensor, ...] = (grad, q, k, v, output, *wanted)
    pointers, strides = _located(tensors)
    launch = _backward_launch(device, q.dtype, shape, k.shape, strides, told, plan)
    if not launch.fits or _are_shifted(pointers):
        tensors = tuple([_aligned(x) for x in tensors])
        pointers, strides = _located(tensors)
        launch = _backward_launch(device, q.dtype, shape, k.shape, strides, told, plan)
        _, q, k, _, _, d_q, d_k, d_v = tensors
    d_band = None
    if plan.has_band:
        batch, heads, rows, _ = shape
        d_band = torch.empty(batch, heads, plan.radius, rows, dtype=torch.float32, device=q.device)
    places = _BACKWARD.pointers.pack(
        *pointers[:5], *launch.places.pointers(notes), _pointer(d_band),
        _pointer(seed), _pointer(gate), _pointer(dropout_gate), _pointer(visible), _pointer(blur_gate), *pointers[5:],
    )  # fmt: skip
    _launch(device, launch.kernel, launch.handle, launch.blocks, places + launch.rest)
    if d_band is not None:
        from ..blur.band import add_band_gradients

        add_band_gradients(d_band, q, k, (d_q, d_k), visible, _blur(extras, plan), plan.scale)
    if wanted[0] is not d_q or wanted[1] is not d_k or wanted[2] is not d_v:
        for mine, found in zip(wanted, (d_q, d_k, d_v), strict=True):
            mine.copy_(found)
    return wanted


class Layout(NamedTuple):
    """A structure `Arguments` of the sources: its pointers, and then strides, floats and integers."""

    pointers: struct.Struct
    rest: struct.Struct

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.pointers.size + self.rest.size


_FORWARD = Layout(struct.Struct("@14Q"), struct.Struct("@12I3q6f10i4I"))
_BACKWARD = Layout(struct.Struct("@19Q"), struct.Struct("@24I3q6f10i2I"))


class Launch(NamedTuple):
    """All of a launch that does not depend on the addresses of its tensors. Finding it takes longer than a launch."""

    kernel: Kernel
    handle: int
    blocks: int
    places: NotePlaces
    #: The arguments after the pointers.
    rest: bytes
    #: Whether the kernel can read and write all tensors where they are; otherwise they must be copied.
    fits: bool


#: Of one tensor, or of several.
Sizes = tuple[int, ...]
Strides = tuple[Sizes, ...]


@functools.lru_cache(maxsize=1024)
def _forward_launch(
    device: int, dtype: torch.dtype, shape: Sizes, key_shape: Sizes, strides: Strides, visible: Sizes | None, plan: Plan
) -> Launch:
    """The strides are those of queries, keys and values."""
    batch, heads, rows, size = shape
    key_heads, keys = key_shape[1:3]
    kernel, handle = _forward_kernel(device, _variant(keys, size, dtype, visible is not None, plan))
    rest = _FORWARD.rest.pack(
        *_three((*strides, (rows * heads * size, size, heads * size, 1))), *(visible or (0, 0, 0)),
        *_numbers(plan), batch * key_heads, key_heads, heads // key_heads, rows, keys, *_choices(plan),
        *divisor(key_heads), *divisor(heads // key_heads * -(-rows // 16)),
    )  # fmt: skip
    return _made(kernel, handle, device, shape, key_shape, strides, plan, rest)


@functools.lru_cache(maxsize=1024)
def _backward_launch(
    device: int, dtype: torch.dtype, shape: Sizes, key_shape: Sizes, strides: Strides, visible: Sizes | None, plan: Plan
) -> Launch:
    """The strides are those of the gradient, queries, keys, values, output, and the three results."""
    batch, heads, rows, size = shape
    key_heads, keys = key_shape[1:3]
    group = heads // key_heads
    variant = _variant(keys, size, dtype, visible is not None, plan)
    kernel, handle = _backward_kernel(device, variant, -(-rows // 16), group)
    rest = _BACKWARD.rest.pack(
        *_three(strides), *(visible or (0, 0, 0)),
        *_numbers(plan), batch * key_heads, key_heads, group, rows, keys, *_choices(plan), *divisor(key_heads),
    )  # fmt: skip
    return _made(kernel, handle, device, shape, key_shape, strides, plan, rest)


def _made(
    kernel: Kernel,
    handle: int,
    device: int,
    shape: Sizes,
    key_shape: Sizes,
    strides: Strides,
    plan: Plan,
    rest: bytes,
) -> Launch:
    batch, heads, rows, _ = shape
    places = places_of(plan, batch * heads * rows, batch * heads, rows, key_shape[2])
    blocks = min(batch * key_shape[1], processors(device) * kernel.blocks)
    return Launch(kernel, handle, blocks, places, rest, all(_is_whole(one) for one in strides))


def _three(strides: Strides) -> list[int]:
    """The first three strides of each tensor as the kernels take them; zeros where a tensor must be copied first."""
    return [step * _NUMBER if _is_whole(one) else 0 for one in strides for step in one[:3]]


def _located(tensors: tuple[Tensor, ...]) -> tuple[list[int], Strides]:
    """Where tensors are in memory: their addresses and strides."""
    return [x.data_ptr() for x in tensors], tuple([x.stride() for x in tensors])


def _are_shifted(pointers: list[int]) -> bool:
    """Whether one of the addresses is not a multiple of 16."""
    bits = 0
    for pointer in pointers:
        bits |= pointer
    return bits % 16 != 0


#: Bytes of a number.
_NUMBER = 2


def _is_whole(strides: Sizes) -> bool:
    """Whether rows are made of whole pieces of 16 bytes, and are not too far apart for the kernels."""
    a, b, c, last = strides
    return last == 1 and (a | b | c) % 8 == 0 and max(a, b, c) * _NUMBER <= FARTHEST


@functools.cache
def divisor(number: int) -> tuple[int, int]:
    """Factor and shift with which the kernels divide: for 0 <= x < 2^31, x // number = (2 x factor >> 32) >> shift."""
    shift = (number - 1).bit_length()
    return -(-(1 << (31 + shift)) // number), shift


def _numbers(plan: Plan) -> tuple[float, ...]:
    sigmas = plan.sigma_min, plan.sigma_max - plan.sigma_min
    return plan.scale, plan.scale * LOG2_E, plan.rate, plan.dropout_rate, *sigmas


def _choices(plan: Plan) -> tuple[int, ...]:
    return plan.stream, plan.dropout_stream, plan.blur_stream, SAMPLINGS[plan.sampling], plan.span


def _pointer(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _visible_strides(visible: Tensor) -> tuple[int, ...]:
    sizes, strides = visible.shape, visible.stride()
    return tuple(strides[d] if sizes[d] > 1 else 0 for d in (0, 1, 3))


def _aligned(x: Tensor) -> Tensor:
    """`x`, copied if the kernels cannot read it where it is. (`why_not_short` makes sure that they can read a copy.)"""
    if _is_whole(x.stride()) and x.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _variant(keys: int, size: int, dtype: torch.dtype, is_masked: bool, plan: Plan) -> Variant:
    return Variant(
        -(-keys // 16), size, dtype == torch.float16, plan.drop, plan.top, plan.hide, plan.is_causal, is_masked,
        plan.radius, plan.renormalize, plan.by_column, plan.shares, plan.dropout,
    )  # fmt: skip


@functools.cache
def _forward_kernel(device: int, variant: Variant) -> tuple[Kernel, int]:
    return _loaded(forward_of(variant, device_of(device)), variant, device)


@functools.cache
def _backward_kernel(device: int, variant: Variant, row_tiles: int, group: int) -> tuple[Kernel, int]:
    return _loaded(backward_of(variant, device_of(device), row_tiles, group), variant, device)


def _loaded(kernel: Kernel | None, variant: Variant, device: int) -> tuple[Kernel, int]:
    if kernel is None:
        raise BackendError(f"there is not enough shared memory for {variant}")
    with torch.cuda.device(device):
        return kernel, load(kernel, device)


class _Space(threading.local):
    """Memory for the arguments of one launch, which the driver copies. The backward runs in another thread."""

    def __init__(self) -> None:
        self.arguments = ctypes.create_string_buffer(_BACKWARD.size)
        self.pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self.arguments))
        self.address = ctypes.addressof(self.pointers)
        #: Devices that this thread has used.
        self.entered: set[int] = set()


_space = _Space()


def _launch(device: int, kernel: Kernel, handle: int, blocks: int, arguments: bytes) -> None:
    if device != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            _launch(device, kernel, handle, blocks, arguments)
        return
    space = _space
    if device not in space.entered:
        enter(device)
        space.entered.add(device)
    ctypes.memmove(space.arguments, arguments, len(arguments))
    (result,) = _driver().cuLaunchKernel(
        handle, blocks, 1, 1, kernel.threads, 1, 1, kernel.shared_bytes, _stream(device), space.address, 0
    )
    if int(result) != 0:
        raise BackendError(f"the kernel {kernel.name} could not be launched: {result!r}")


def _stream(device: int) -> int:
    """The handle of the current stream. (`torch.cuda.current_stream` makes an object, which takes longer.)"""
    handle: int = torch._C._cuda_getCurrentRawStream(device)
    return handle


@functools.cache
def _driver() -> Any:
    from cuda.bindings import driver

    return driver
