"""Tensors inside whatever models take and return: tuples, dictionaries, dataclasses, caches of transformers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..errors import bad_argument

#: Given the name of the argument (or the key, or the position) and a tensor, what to put in its place.
Change = Callable[[str, Tensor], Tensor]


def map_tensors(value: Any, change: Change, name: str = "") -> Any:
    """A copy of `value` in which every tensor is changed. What is not a known container stays as it is.

    `change` gets the name of the outermost key, also for a tensor inside a nested container.

    >>> import torch
    >>> map_tensors({"x": torch.zeros(2), "n": 3}, lambda name, x: x + 1)
    {'x': tensor([1., 1.]), 'n': 3}
    """
    if isinstance(value, Tensor):
        return change(name, value)
    if isinstance(value, Mapping):
        items = {key: map_tensors(entry, change, name or str(key)) for key, entry in value.items()}
        # The outputs of transformers are dictionaries that take their entries by name.
        return type(value)(**items) if dataclasses.is_dataclass(value) else items
    if isinstance(value, tuple | list):
        entries = [map_tensors(entry, change, name) for entry in value]
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
    if is_cache(value):
        return _map_cache(value, change, name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        changed = {key: map_tensors(entry, change, name or key) for key, entry in fields.items()}
        return dataclasses.replace(value, **changed)
    return value


def call_arguments(name: str, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from a tensor, a tuple or a mapping; an error names the argument as `name`."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, tuple):
        return inputs, {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    raise bad_argument(name, "a tensor, a tuple of positional or a dict of keyword arguments", type(inputs).__name__)


def is_cache(value: Any) -> bool:
    """Whether `value` looks like a cache of transformers: layers with keys and values, or two such caches."""
    layers = getattr(value, "layers", None)
    plain = isinstance(layers, list) and all(hasattr(layer, "is_initialized") for layer in layers)
    return plain or hasattr(value, "self_attention_cache")


def change_cache(cache: Any, change: Change, name: str = "") -> None:
    """Change the keys and values of a cache in place, because a model goes on using the cache that it was given."""
    if hasattr(cache, "self_attention_cache"):
        change_cache(cache.self_attention_cache, change, name)
        change_cache(cache.cross_attention_cache, change, name)
        return
    for layer in cache.layers:
        for part in ("keys", "values"):
            held = getattr(layer, part, None)
            if isinstance(held, Tensor):
                setattr(layer, part, change(name, held))


def _map_cache(cache: Any, change: Change, name: str) -> Any:
    new = copy.copy(cache)
    if hasattr(cache, "self_attention_cache"):
        new.self_attention_cache = _map_cache(cache.self_attention_cache, change, name)
        new.cross_attention_cache = _map_cache(cache.cross_attention_cache, change, name)
        new.is_updated = dict(cache.is_updated)
        return new
    new.layers = [copy.copy(layer) for layer in cache.layers]
    change_cache(new, change, name)
    return new
