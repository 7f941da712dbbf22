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
    """One forward in training mode, without gradients, of which nothing stays."""
    # Not compiled: a function mode would have everything compiled anew. (Loading the compiler takes seconds.)
    loaded = "torch._dynamo" in sys.modules
    eager = torch.compiler.set_stance("force_eager") if loaded else contextlib.nullcontext()
    with _random_numbers(model), _training(model), _kept(model), torch.no_grad(), eager:
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
    """In training mode as a whole, unless it is already: parts that were set to evaluation then stay so."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        if not model.training:
            model.train()
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextlib.contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """Buffers and other tensors of the modules, counters, and what sites measure."""
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
            # Not where nothing changed: a graph that was built before may need the tensor as it is.
            if not tensor.is_meta and not torch.equal(tensor, copy):
                with torch.no_grad():
                    tensor.copy_(copy)
        for site, monitor in monitors:
            site.monitor = monitor
