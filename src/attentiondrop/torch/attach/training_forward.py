"""Run a model once in training mode and leave it as it was."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .sites import site_of


def training_forward(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """One forward in training mode, without gradients. Restores all state afterwards."""
    # Run without compiling: a function mode would cause recompilation. Not loaded for this, since that takes seconds.
    loaded = "torch._dynamo" in sys.modules
    eager = torch.compiler.set_stance("force_eager") if loaded else contextlib.nullcontext()
    with _random_numbers(model), _training(model), state_kept(model), torch.no_grad(), eager:
        model._call_impl(*args, **kwargs)


@contextlib.contextmanager
def _random_numbers(model: nn.Module) -> Iterator[None]:
    devices = {x.device for x in (*model.parameters(), *model.buffers()) if x.device.type == "cuda"}
    numpy = sys.modules.get("numpy")
    states = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        with torch.random.fork_rng(sorted(devices, key=str)):
            yield
    finally:
        random.setstate(states[0])
        if numpy is not None:
            numpy.random.set_state(states[1])


@contextlib.contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Put the model into training mode, unless it is: then parts that were set to evaluation stay so."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        if not model.training:
            model.train()
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextlib.contextmanager
def state_kept(model: nn.Module) -> Iterator[None]:
    """Restore buffers and other tensors, counters, and the measurements of sites afterwards.

    Within, sites measure nothing, so rates that adapt stay where they are.
    """
    tensors: list[tuple[dict[str, Any], str, Tensor, Tensor]] = []
    numbers: list[tuple[dict[str, Any], str, Any]] = []
    monitors = [(site, site.monitor) for module in model.modules() if (site := site_of(module)) is not None]
    for module in model.modules():
        for held in (module._buffers, module.__dict__):
            for name, value in held.items():
                if isinstance(value, Tensor):
                    tensors.append((held, name, value, value.detach().clone()))
                elif isinstance(value, int | float) and name != "training":
                    numbers.append((held, name, value))
    try:
        for site, _ in monitors:
            site.monitor = None
        yield
    finally:
        for held, name, number in numbers:
            held[name] = number
        for held, name, tensor, copy in tensors:
            held[name] = tensor
            # Only if it changed: an autograd graph built before may need the unmodified tensor.
            if not tensor.is_meta and not torch.equal(tensor, copy):
                with torch.no_grad():
                    tensor.copy_(copy)
        for site, monitor in monitors:
            site.monitor = monitor
