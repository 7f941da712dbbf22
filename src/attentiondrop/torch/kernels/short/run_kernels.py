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
from .allocate import empty_on_gpu
from .build import device_of, enter, load, processors
from .plans import NotePlaces, Plan, output_strides, places_of, read
from .variants import FARTHEST, Kernel, Variant, backward_of, forward_of

LOG2_E = math.log2(math.e)
#: How sigma of a blur is drawn, as the sources count it.
SAMPLINGS = {"batch": 0, "sample": 1, "head": 2}


def _blur(plan: Plan, seed: Tensor | None, gate: Tensor | None) -> Any:
    """The blur as the kernels of the band take it."""
    from ..blur.rows import Blur

    numbers = plan.blur_stream, plan.sampling, plan.sigma_min, plan.sigma_max, 2 * plan.radius + 1, plan.renormalize
    return Blur(seed, gate, *numbers)  # type: ignore[arg-type]  # a blur always has a seed


def _band_of(notes: Tensor, places: NotePlaces, shape: tuple[int, int, int, int]) -> Tensor:
    return notes[places.band :][: math.prod(shape)].view(torch.float32).view(shape)


# Most models call the two functions below so often that what they do in Python takes longer than the kernels. So they
# take flat arguments, and all that does not depend on addresses was found in an earlier call (`ReadyForward`).


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seed: Tensor | None,
    gate: Tensor | None,
    dropout_gate: Tensor | None,
    blur_gate: Tensor | None,
    visible: Tensor | None,
    plan: str,
) -> tuple[Tensor, Tensor]:
    """Attention of rows with at most `MOST_KEYS` keys: the output, and notes for the backward (see `plans`).

    Seed, factors on the rates and on the sigmas, and which keys are visible [B or 1, Hk or 1, 1, M].
    """
    device = q.get_device()
    if device != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            return forward(q, k, v, seed, gate, dropout_gate, blur_gate, visible, plan)
    at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    told = None if visible is None else _visible_strides(visible)
    strides = q.stride(), k.stride(), v.stride()
    ready = _ready_forward(device, q.dtype, q.shape, k.shape, strides, told, plan)
    if (at_q | at_k | at_v) & 15 or not ready.fits:
        return forward(_aligned(q), _aligned(k), _aligned(v), seed, gate, dropout_gate, blur_gate, visible, plan)
    launch, _, sizes, order, dtype, words, dropped, kept, share, band, has_band = ready
    output = empty_on_gpu(sizes, order, dtype)
    notes = empty_on_gpu(words, _ONE, torch.int32)
    if launch is None:  # there are no queries
        return output, notes
    if has_band:
        from ..blur.band import band_logits  # imports Triton

        wanted = read(plan)
        batch, heads, rows, _ = sizes
        held = _band_of(notes, launch.places, (batch, heads, wanted.radius, rows))
        # The kernels multiply by the scale themselves.
        band_logits(q, k, held, visible, _blur(wanted, seed, blur_gate), 1.0)
    start = notes.data_ptr()
    space = _space
    _WHOLE_FORWARD.pack_into(
        space.arguments, 0,
        at_q, at_k, at_v, output.data_ptr(), start, start + dropped, start + kept, start + share, start + band,
        0 if seed is None else seed.data_ptr(), 0 if gate is None else gate.data_ptr(),
        0 if dropout_gate is None else dropout_gate.data_ptr(), 0 if visible is None else visible.data_ptr(),
        0 if blur_gate is None else blur_gate.data_ptr(), launch.rest,
    )  # fmt: skip
    _launch(device, launch, space)
    return output, notes


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    notes: Tensor,
    seed: Tensor | None,
    gate: Tensor | None,
    dropout_gate: Tensor | None,
    blur_gate: Tensor | None,
    visible: Tensor | None,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, in their memory orders."""
    device = q.get_device()
    if device != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            return backward(grad, q, k, v, output, notes, seed, gate, dropout_gate, blur_gate, visible, plan)
    at_grad, at_q, at_k, at_v, at_output = (
        grad.data_ptr(), q.data_ptr(), k.data_ptr(), v.data_ptr(), output.data_ptr(),
    )  # fmt: skip
    told = None if visible is None else _visible_strides(visible)
    strides = grad.stride(), q.stride(), k.stride(), v.stride(), output.stride()
    ready = _ready_backward(device, q.dtype, q.shape, k.shape, strides, told, plan)
    launch, fits, sizes, key_sizes, q_strides, k_strides, v_strides, dtype, dropped, kept, share, band, has_band = ready
    if (at_grad | at_q | at_k | at_v | at_output) & 15 or not fits:
        d_q, d_k, d_v = backward(
            _aligned(grad), _ordered(q), _ordered(k), _ordered(v), _aligned(output), notes,
            seed, gate, dropout_gate, blur_gate, visible, plan,
        )  # fmt: skip
        return _strided(d_q, q_strides), _strided(d_k, k_strides), _strided(d_v, v_strides)
    d_q = empty_on_gpu(sizes, q_strides, dtype)
    d_k = empty_on_gpu(key_sizes, k_strides, dtype)
    d_v = empty_on_gpu(key_sizes, v_strides, dtype)
    if launch is None:  # there were no queries
        return d_q, d_k.zero_(), d_v.zero_()
    d_band, at_d_band = None, 0
    if has_band:
        wanted = read(plan)
        batch, heads, rows, _ = sizes
        d_band = torch.empty(batch, heads, wanted.radius, rows, dtype=torch.float32, device=q.device)
        at_d_band = d_band.data_ptr()
    start = notes.data_ptr()
    space = _space
    _WHOLE_BACKWARD.pack_into(
        space.arguments, 0,
        at_grad, at_q, at_k, at_v, at_output,
        start, start + dropped, start + kept, start + share, start + band, at_d_band,
        0 if seed is None else seed.data_ptr(), 0 if gate is None else gate.data_ptr(),
        0 if dropout_gate is None else dropout_gate.data_ptr(), 0 if visible is None else visible.data_ptr(),
        0 if blur_gate is None else blur_gate.data_ptr(), d_q.data_ptr(), d_k.data_ptr(), d_v.data_ptr(), launch.rest,
    )  # fmt: skip
    _launch(device, launch, space)
    if d_band is not None:
        from ..blur.band import add_band_gradients

        add_band_gradients(d_band, q, k, (d_q, d_k), visible, _blur(wanted, seed, blur_gate), wanted.scale)
    return d_q, d_k, d_v


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
#: The same with all that follows the pointers as bytes.
_WHOLE_FORWARD, _WHOLE_BACKWARD = (
    struct.Struct(f"{layout.pointers.format}{layout.rest.size}s") for layout in (_FORWARD, _BACKWARD)
)


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
_ONE = (1,)


class ReadyForward(NamedTuple):
    """All that the forward does not have to find out again for tensors of the same shapes and strides."""

    #: None if there are no queries.
    launch: Launch | None
    fits: bool
    sizes: Sizes
    output_strides: Sizes
    dtype: torch.dtype
    #: The sizes of the notes, and where parts of them begin, in bytes.
    words: Sizes
    dropped: int
    kept: int
    share: int
    band: int
    has_band: bool


class ReadyBackward(NamedTuple):
    """The same for the backward."""

    launch: Launch | None
    fits: bool
    sizes: Sizes
    key_sizes: Sizes
    #: Of the gradients.
    q_strides: Sizes
    k_strides: Sizes
    v_strides: Sizes
    dtype: torch.dtype
    dropped: int
    kept: int
    share: int
    band: int
    has_band: bool


@functools.lru_cache(maxsize=1024)
def _ready_forward(
    device: int, dtype: torch.dtype, shape: Sizes, key_shape: Sizes, strides: Strides, visible: Sizes | None, plan: str
) -> ReadyForward:
    """The strides are those of queries, keys and values. (A string is found faster than a `Plan`.)"""
    wanted = read(plan)
    batch, heads, rows, _ = sizes = tuple(shape)
    places = places_of(wanted, batch * heads * rows, batch * heads, rows, key_shape[2])
    launch = None if 0 in sizes else _forward_launch(device, dtype, sizes, tuple(key_shape), strides, visible, wanted)
    fits = launch is None or launch.fits
    rest = (places.end,), *places.offsets(), wanted.has_band
    return ReadyForward(launch, fits, sizes, output_strides(sizes), dtype, *rest)


@functools.lru_cache(maxsize=1024)
def _ready_backward(
    device: int, dtype: torch.dtype, shape: Sizes, key_shape: Sizes, strides: Strides, visible: Sizes | None, plan: str
) -> ReadyBackward:
    """The strides are those of the gradient, queries, keys, values and output."""
    wanted = read(plan)
    batch, heads, rows, _ = sizes = tuple(shape)
    key_sizes = tuple(key_shape)
    _, of_q, of_k, of_v, _ = strides
    orders = _order_of_gradient(sizes, of_q), _order_of_gradient(key_sizes, of_k), _order_of_gradient(key_sizes, of_v)
    launch = None
    if 0 not in sizes:
        launch = _backward_launch(device, dtype, sizes, key_sizes, (*strides, *orders), visible, wanted)
    places = places_of(wanted, batch * heads * rows, batch * heads, rows, key_shape[2])
    fits = launch is None or launch.fits
    return ReadyBackward(launch, fits, sizes, key_sizes, *orders, dtype, *places.offsets(), wanted.has_band)


def _order_of_gradient(sizes: Sizes, strides: Sizes) -> Sizes:
    """The strides that `torch.empty_like` gives."""
    return torch.empty_like(torch.empty_strided(sizes, strides, device="meta")).stride()


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


def _visible_strides(visible: Tensor) -> tuple[int, ...]:
    sizes, strides = visible.shape, visible.stride()
    return tuple(strides[d] if sizes[d] > 1 else 0 for d in (0, 1, 3))


def _aligned(x: Tensor) -> Tensor:
    """`x`, copied if the kernels cannot read it where it is. (`why_not_short` makes sure that they can read a copy.)"""
    if _is_whole(x.stride()) and x.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _ordered(x: Tensor) -> Tensor:
    """The same, and the rows of its gradient are made of such pieces, too."""
    x = _aligned(x)
    return x if _is_whole(_order_of_gradient(x.shape, x.stride())) else x.clone(memory_format=torch.contiguous_format)


def _strided(x: Tensor, strides: Sizes) -> Tensor:
    """`x` with these strides."""
    return x if x.stride() == strides else x.new_empty_strided(x.shape, strides).copy_(x)


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


def _launch(device: int, launch: Launch, space: _Space) -> None:
    """Launch a kernel on the current device, with the arguments in `space`."""
    kernel = launch.kernel
    if device not in space.entered:
        enter(device)
        space.entered.add(device)
    (result,) = _driver().cuLaunchKernel(
        launch.handle, launch.blocks, 1, 1, kernel.threads, 1, 1, kernel.shared_bytes, _stream(device), space.address, 0
    )
    if result:
        raise BackendError(f"the kernel {kernel.name} could not be launched: {result!r}")


def _stream(device: int) -> int:
    """The handle of the current stream. (`torch.cuda.current_stream` makes an object, which takes longer.)"""
    handle: int = torch._C._cuda_getCurrentRawStream(device)
    return handle


@functools.cache
def _driver() -> Any:
    from cuda.bindings import driver

    return driver
