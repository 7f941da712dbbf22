"""What launches of the kernels for short rows have in common, if shapes, strides and plan are the same: found once."""

from __future__ import annotations

import functools
import math
import struct
from typing import NamedTuple

import torch

from ....errors import BackendError
from .build import device_of, load, processors
from .plans import NotePlaces, Plan, output_strides, places_of, read
from .variants import FARTHEST, Kernel, Variant, backward_of, forward_of

LOG2_E = math.log2(math.e)


class Layout(NamedTuple):
    """A structure `Arguments` of the sources: its pointers, and then strides, floats and integers."""

    pointers: struct.Struct
    rest: struct.Struct

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.pointers.size + self.rest.size


FORWARD = Layout(struct.Struct("@14Q"), struct.Struct("@12I3q6f10i4I"))
BACKWARD = Layout(struct.Struct("@19Q"), struct.Struct("@24I3q6f10i2I"))
#: The same with all that follows the pointers as bytes.
WHOLE_FORWARD, WHOLE_BACKWARD = (
    struct.Struct(f"{layout.pointers.format}{layout.rest.size}s") for layout in (FORWARD, BACKWARD)
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
def ready_forward(
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
def ready_backward(
    device: int, dtype: torch.dtype, shape: Sizes, key_shape: Sizes, strides: Strides, visible: Sizes | None, plan: str
) -> ReadyBackward:
    """The strides are those of the gradient, queries, keys, values and output."""
    wanted = read(plan)
    batch, heads, rows, _ = sizes = tuple(shape)
    key_sizes = tuple(key_shape)
    _, of_q, of_k, of_v, _ = strides
    orders = order_of_gradient(sizes, of_q), order_of_gradient(key_sizes, of_k), order_of_gradient(key_sizes, of_v)
    launch = None
    if 0 not in sizes:
        launch = _backward_launch(device, dtype, sizes, key_sizes, (*strides, *orders), visible, wanted)
    places = places_of(wanted, batch * heads * rows, batch * heads, rows, key_shape[2])
    fits = launch is None or launch.fits
    return ReadyBackward(launch, fits, sizes, key_sizes, *orders, dtype, *places.offsets(), wanted.has_band)


def order_of_gradient(sizes: Sizes, strides: Sizes) -> Sizes:
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
    rest = FORWARD.rest.pack(
        *_three((*strides, (rows * heads * size, size, heads * size, 1))), *(visible or (0, 0, 0)),
        *_numbers(plan), batch * key_heads, key_heads, heads // key_heads, rows, keys, *_choices(plan, batch),
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
    rest = BACKWARD.rest.pack(
        *_three(strides), *(visible or (0, 0, 0)),
        *_numbers(plan), batch * key_heads, key_heads, group, rows, keys, *_choices(plan, batch), *divisor(key_heads),
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
    return Launch(kernel, handle, blocks, places, rest, all(is_whole(one) for one in strides))


def _three(strides: Strides) -> list[int]:
    """The first three strides of each tensor as the kernels take them; zeros where a tensor must be copied first."""
    return [step * _NUMBER if is_whole(one) else 0 for one in strides for step in one[:3]]


#: Bytes of a number.
_NUMBER = 2


def is_whole(strides: Sizes) -> bool:
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


def _choices(plan: Plan, batch: int) -> tuple[int, ...]:
    return plan.stream, plan.dropout_stream, plan.blur_stream, per_sigma(plan, batch), plan.span


def per_sigma(plan: Plan, batch: int) -> int:
    """How many samples, one after the other, share the sigma of a blur; 0 if each head has its own."""
    return {"batch": batch // plan.groups, "sample": 1, "head": 0}[plan.sampling]


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
