"""Launch the kernels for short rows.

A kernel has one argument, a structure. Packing it takes little time, and so does a launch through the driver.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from typing import Any

import torch
from torch import Tensor

from ....errors import BackendError
from .allocate import empty_on_gpu
from .build import enter
from .launches import (
    BACKWARD,
    WHOLE_BACKWARD,
    WHOLE_FORWARD,
    Launch,
    Sizes,
    is_whole,
    order_of_gradient,
    ready_backward,
    ready_forward,
)
from .plans import NotePlaces, Plan, read

#: The strides of the notes.
_ONE = (1,)


def _blur(plan: Plan, seed: Tensor | None, gate: Tensor | None) -> Any:
    """The blur as the kernels of the band take it."""
    from ..blur.rows import Blur

    numbers = plan.blur_stream, plan.sampling, plan.sigma_min, plan.sigma_max, 2 * plan.radius + 1
    # A blur always has a seed.
    return Blur(seed, gate, *numbers, plan.renormalize, plan.groups)  # type: ignore[arg-type]


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
    ready = ready_forward(device, q.dtype, q.shape, k.shape, strides, told, plan)
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
    WHOLE_FORWARD.pack_into(
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
    ready = ready_backward(device, q.dtype, q.shape, k.shape, strides, told, plan)
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
    WHOLE_BACKWARD.pack_into(
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


def _visible_strides(visible: Tensor) -> tuple[int, ...]:
    sizes, strides = visible.shape, visible.stride()
    return tuple(strides[d] if sizes[d] > 1 else 0 for d in (0, 1, 3))


def _aligned(x: Tensor) -> Tensor:
    """`x`, copied if the kernels cannot read it where it is. (`why_not_short` makes sure that they can read a copy.)"""
    if is_whole(x.stride()) and x.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _ordered(x: Tensor) -> Tensor:
    """The same, and the rows of its gradient are made of such pieces, too."""
    x = _aligned(x)
    return x if is_whole(order_of_gradient(x.shape, x.stride())) else x.clone(memory_format=torch.contiguous_format)


def _strided(x: Tensor, strides: Sizes) -> Tensor:
    """`x` with these strides."""
    return x if x.stride() == strides else x.new_empty_strided(x.shape, strides).copy_(x)


class _Space(threading.local):
    """Memory for the arguments of one launch, which the driver copies. The backward runs in another thread."""

    def __init__(self) -> None:
        self.arguments = ctypes.create_string_buffer(BACKWARD.size)
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
