"""Load pretrained weights into a model of timm: all but those of the head, which is made for other classes."""

from __future__ import annotations

from collections.abc import Mapping
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
        words = "; ".join(_in_words(expected, found))
        raise ArgumentError(
            f"model.checkpoint: {path} does not fit the model: {f'{words}; ' if words else ''}{len(wrong)} tensors "
            f"differ, such as {name}: expected {expected.get(name, 'none')}, found {found.get(name, 'none')}"
        )
    model.load_state_dict(own | {name: weights[name] for name in expected})


Shapes = Mapping[str, list[int]]


def _in_words(expected: Shapes, found: Shapes) -> list[str]:
    """How a checkpoint differs from the model, as far as the shapes of a vision transformer tell."""
    words = []
    here, there = (_patches(shapes) for shapes in (expected, found))
    if here and there:
        if here[2:] != there[2:]:
            words.append(f"it has patches of {there[2]} pixels, the model {here[2]} (model.patch_size)")
        if here[0] != there[0]:
            words.append(f"it has a width of {there[0]}, the model {here[0]} (model.name)")
        if here[1] != there[1]:
            words.append(f"it has {there[1]} channels, the images {here[1]}")
    blocks = [_blocks(shapes) for shapes in (expected, found)]
    if all(blocks) and blocks[0] != blocks[1]:
        words.append(f"it has {blocks[1]} blocks, the model {blocks[0]} (model.name, or model.arguments.depth)")
    positions = [shapes.get("pos_embed", [0, 0])[1] for shapes in (expected, found)]
    if not words and all(positions) and positions[0] != positions[1]:
        words.append(f"it has {positions[1]} positions, the model {positions[0]} (data.image_size)")
    return words


def _patches(shapes: Shapes) -> list[int] | None:
    """[width, channels, height, width of a patch]."""
    found = shapes.get("patch_embed.proj.weight")
    return found if found is not None and len(found) == 4 else None


def _blocks(shapes: Shapes) -> int:
    return len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})


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
