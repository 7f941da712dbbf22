"""Build a model from its settings and the data: the small model for the digits, or any model of timm by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import timm
import torch
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from ....errors import ArgumentError
from ...failures import in_words
from ...files.typed_settings import unlisted
from ..checkpoint_files import check_content, weights_file
from . import digits_vit
from .pretrained_body import load_body
from .settings import TimmSettings

DIGITS = "vit_digits"
#: The arguments of timm for dropout of activations in the body. A model has both, one, or none of them: then the only
#: dropout that it has is that of its head.
_DROPOUT = (("proj_drop_rate", "pos_drop_rate"), ("proj_drop_rate",), ("pos_drop_rate",), ("drop_rate",))
#: Its argument for stochastic depth.
_DROP_PATH = "drop_path_rate"
#: More tokens than this are probably a mistake: 224 x 224 pixels in the patches of CIFAR-10.
_MANY = 1024


def build_model(
    settings: TimmSettings, *, classes: int, channels: int, size: int, rates: Mapping[str, float], seed: int
) -> nn.Module:
    """A new model for images of `channels` x `size` x `size`, on the CPU.

    The weights depend only on `seed`, so that all methods with one seed start from the same weights. torch's global
    generator is not changed. `rates` may have `drop_path` and `dropout`. `dropout` sets the dropout of activations in
    the body of the model, but neither that of attention weights (that is `attndropout`) nor that of the head, unless
    the model has no other.
    """
    if settings.name != DIGITS and not timm.is_model(settings.name):
        raise unlisted(f"model.name {settings.name!r}", settings.name, [DIGITS, *timm.list_models()], "model of timm")
    arguments: dict[str, Any] = {"num_classes": classes, "in_chans": channels}
    if _is_transformer(settings.name):
        arguments["img_size"] = size
    if settings.patch_size is not None:
        arguments["patch_size"] = settings.patch_size
    # A method with a rate of its own replaces that of the recipe.
    arguments |= settings.arguments
    if "drop_path" in rates:
        arguments[_DROP_PATH] = rates["drop_path"]
    with torch.random.fork_rng(devices=()):
        try:
            model = _with_dropout(settings, arguments, rates.get("dropout"), seed)
            if settings.checkpoint_activations:
                model.set_grad_checkpointing()  # type: ignore[operator]
        except Exception as error:  # models of timm raise many kinds of errors
            raise ArgumentError(
                f"model: {settings.name} cannot be built with {arguments}: {in_words(error)}"
            ) from error
    if settings.checkpoint is not None:
        check_content(settings)
        load_body(model, weights_file(settings.checkpoint))
    return model


def many_patches(model: nn.Module, size: int) -> list[str]:
    """A line about the patch size, if every patch attends to very many others."""
    patches = getattr(getattr(model, "patch_embed", None), "num_patches", 0)
    # Models that attend within windows have as many patches, but not such long rows.
    plain = isinstance(model, (VisionTransformer, Eva, Beit))
    if not plain or patches <= _MANY:
        return []
    patch = model.patch_embed.patch_size[0]  # type: ignore[index, union-attr]
    better = next((larger for larger in (8, 16, 32) if larger > patch and (size // larger) ** 2 <= _MANY), None)
    advice = "" if better is None else f"; with model.patch_size={better} there are {(size // better) ** 2:,}"
    return [
        f"model.patch_size: images of {size} x {size} pixels in patches of {patch} are {patches:,} tokens, which is "
        f"very slow{advice}"
    ]


def _with_dropout(settings: TimmSettings, arguments: dict[str, Any], rate: float | None, seed: int) -> nn.Module:
    """A new model with this rate under the first of `_DROPOUT` that it takes. None: with its own rates."""
    if rate is None:
        return _created(settings, arguments, seed)
    *others, last = _DROPOUT
    for names in others:
        try:
            return _created(settings, arguments | dict.fromkeys(names, rate), seed)
        except TypeError as error:
            if not any(f"unexpected keyword argument '{name}'" in str(error) for name in names):
                raise
    return _created(settings, arguments | dict.fromkeys(last, rate), seed)


def _created(settings: TimmSettings, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = (
        digits_vit.build(**arguments)
        if settings.name == DIGITS
        else timm.create_model(settings.name, pretrained=settings.pretrained, **arguments)
    )
    return model


def _is_transformer(name: str) -> bool:
    """Whether the model takes the arguments of timm's plain vision transformers."""
    if name == DIGITS:
        return True
    source = inspect.getmodule(timm.model_entrypoint(name))
    return source is not None and source.__name__.endswith(("vision_transformer", "deit", "eva", "beit"))
