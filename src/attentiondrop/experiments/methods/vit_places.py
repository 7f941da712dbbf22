"""Where comparators act in a model: the blocks, sublayers and attention of timm's vision transformers.

Everything is reached by hooks, which are no part of a `state_dict`: parameters and their names stay. Hooks are plain
objects, so that a copy of the model has its own.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ...errors import ArgumentError


def blocks_of(model: nn.Module, who: str) -> list[nn.Module]:
    """The blocks of a vision transformer, in order. `who` is the method that needs them, for the error."""
    found = getattr(model, "blocks", None)
    blocks = list(found) if isinstance(found, (nn.ModuleList, nn.Sequential)) else []
    if not blocks or not all(hasattr(block, "attn") and hasattr(block, "mlp") for block in blocks):
        raise ArgumentError(
            f"{who}: expected a model of `blocks` that have `attn` and `mlp`, as timm's vision transformers, "
            f"received {type(model).__name__}"
        )
    return blocks


def attentions_of(model: nn.Module, who: str) -> list[nn.Module]:
    """The attention of each block: timm's `Attention`, with `qkv`, `q_norm`, `k_norm`, `proj` and `num_heads`."""
    found = [_child(block, "attn") for block in blocks_of(model, who)]
    for module in found:
        if not all(hasattr(module, name) for name in ("qkv", "q_norm", "k_norm", "proj", "num_heads")):
            raise ArgumentError(
                f"{who}: expected attention with `qkv`, `q_norm`, `k_norm`, `proj` and `num_heads`, as timm's "
                f"Attention, received {type(module).__name__}"
            )
    return found


def sublayers_of(model: nn.Module, who: str) -> list[nn.Module]:
    """The attention and the MLP of each block, in order: what the block adds to its residual stream."""
    return [_child(block, name) for block in blocks_of(model, who) for name in ("attn", "mlp")]


def prefix_tokens(model: nn.Module) -> int:
    """How many tokens before the patches are not patches, such as the class token."""
    return int(getattr(model, "num_prefix_tokens", 0))


def tokens_of(model: nn.Module, who: str) -> int:
    """How many tokens an image becomes, those before the patches included."""
    patches = getattr(getattr(model, "patch_embed", None), "num_patches", None)
    if not isinstance(patches, int):
        raise ArgumentError(f"{who}: expected a model with a fixed number of patches, received {type(model).__name__}")
    return prefix_tokens(model) + patches


def images_of(batch: Any, who: str) -> Any:
    """The images and class targets of a batch. A task without images is refused."""
    from torch import Tensor

    inputs, targets = batch
    if not isinstance(inputs, Tensor) or inputs.dim() != 4 or not inputs.is_floating_point():
        what = f"a tensor of shape {list(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ArgumentError(f"{who}: expected a task with images [batch, channels, height, width], received {what}")
    return inputs, targets


def classes_of(model: nn.Module, who: str) -> int:
    """How many classes the model tells apart."""
    found = getattr(model, "num_classes", None)
    if not isinstance(found, int) or found < 1:
        raise ArgumentError(
            f"{who}: expected a classifier of images, which has `num_classes`, received {type(model).__name__}"
        )
    return found


def _child(module: nn.Module, name: str) -> nn.Module:
    child: nn.Module = getattr(module, name)
    return child
