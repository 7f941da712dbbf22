"""Store weights and training state as safetensors. Nothing is ever unpickled.

`Accelerator.save_state` is not used: it writes pickles, and several files that may not fit together after a crash.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..files.whole_files import DamagedRecordError, damaged, replacing

_TREE = "tree"


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write a `state_dict`, whole or not at all."""
    _write(path, {name: _stored(tensor) for name, tensor in weights.items()})


def load_weights(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Read a `state_dict`."""
    try:
        return load_file(path, device=device)
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from error


def load_into(model: nn.Module, path: Path, name: str) -> None:
    """Load the weights in `path` into `model`. Weights of another model are refused in one line, with its `name`."""
    weights, own = load_weights(path), model.state_dict()
    missing = [key for key in own if key not in weights]
    unknown = [key for key in weights if key not in own]
    shapes = {key: (list(own[key].shape), list(weights[key].shape)) for key in own if key in weights}
    shapes = {key: (expected, found) for key, (expected, found) in shapes.items() if expected != found}
    if missing or unknown or shapes:
        examples = [f"{missing[0]} is missing"] if missing else [f"{unknown[0]} is unknown"] if unknown else []
        examples += [f"{key} has {found} for {expected}" for key, (expected, found) in list(shapes.items())[:1]]
        raise DamagedRecordError(
            f"{path} does not hold the weights of {name}: of its {len(own)} tensors {len(missing)} are missing and "
            f"{len(shapes)} have another shape, and {len(unknown)} others are there ({', '.join(examples)})"
        )
    model.load_state_dict(weights)


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested dicts, lists and tuples of tensors and plain values, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_packed(state, tensors))
    _write(path, tensors, {_TREE: tree})


def load_state(path: Path) -> dict[str, Any] | None:
    """Read what `save_state` wrote, on the CPU; None if there is no file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            state: dict[str, Any] = _unpacked(json.loads(file.metadata()[_TREE]), file)
            return state
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, error) from error


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    try:
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata)
    except SafetensorError as error:
        # safetensors has the error of the system, such as a full disk, only in its text.
        if found := re.search(r"os error (\d+)", str(error)):
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


def _packed(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = _stored(value)
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"dict": [[key, _packed(one, tensors)] for key, one in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_packed(one, tensors) for one in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(f"state: expected tensors and plain values, found {type(value).__name__}")


def _unpacked(node: dict[str, Any], file: Any) -> Any:
    ((kind, content),) = node.items()
    if kind == "tensor":
        return file.get_tensor(content)
    if kind == "dict":
        return {key: _unpacked(one, file) for key, one in content}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](_unpacked(one, file) for one in content)
    return content


def _stored(tensor: Tensor) -> Tensor:
    # Copy: safetensors refuses tensors that share memory, such as tied weights.
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
