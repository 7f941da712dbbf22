"""Load pretrained weights into a model of timm: all but those of the head, which is made for other classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ....errors import ArgumentError


def load_body(model: nn.Module, path: Path) -> None:
    """Load the weights in `path` into `model`. The head keeps its new weights, also where the old ones would fit.

    Everything else must be there, with its shape, and nothing more.
    """
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ArgumentError(f"model.checkpoint: {path} cannot be read: {' '.join(str(error).split())}") from error
    head, own = _head(model), model.state_dict()
    expected = {name: list(tensor.shape) for name, tensor in own.items() if not name.startswith(head)}
    found = {name: list(tensor.shape) for name, tensor in weights.items() if not name.startswith(head)}
    wrong = [name for name in expected | found if expected.get(name) != found.get(name)]
    if wrong:
        name = wrong[0]
        raise ArgumentError(
            f"model.checkpoint: {path} does not fit the model: {len(wrong)} tensors differ, such as {name}: expected "
            f"{expected.get(name, 'none')}, found {found.get(name, 'none')}"
        )
    model.load_state_dict(own | {name: weights[name] for name in expected})


def _head(model: nn.Module) -> tuple[str, ...]:
    """How the names of the head's weights begin."""
    get: Any = getattr(model, "get_classifier", None)
    heads = [] if get is None else get()
    heads = heads if isinstance(heads, (list, tuple)) else [heads]
    names = tuple(f"{name}." for name, module in model.named_modules() if any(module is head for head in heads))
    if not names:
        raise ArgumentError(
            f"model.checkpoint: expected a model with a head for classes, received {type(model).__name__}"
        )
    return names
