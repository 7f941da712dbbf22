"""Labels do not belong to the inputs of stacked views: with them, a model computes one loss over all views at once.

That loss belongs to no view. Where the batch is repeated inside the model, the labels are not, and the loss fails.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from .stacked_batch import StackError


def labels_among(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The name of the first argument that looks like labels, from which a model may compute a loss."""
    # The first argument is what the model is about. (A compiler cannot read signatures, so read only what is needed.)
    positional = [*inspect.signature(model.forward).parameters][: len(args)] if len(args) > 1 else []
    given = [*zip(positional, args, strict=False), *kwargs.items()]
    # (`targets` as in nanoGPT. A `target` is what many translators begin their output with. The labels of detection are
    # a list of dictionaries, one for each image.)
    held = [name for name, x in given if isinstance(x, Tensor | list | tuple | Mapping)]
    return next((name for name in held if "label" in name or name == "targets"), None)


def refuse_labels(model: nn.Module, labels: str | None, mode: str) -> None:
    """Refuse labels for a model of transformers before it runs: it would compute a loss."""
    # (Wrapped models are looked through. `loss_function` is what these models compute a loss with.)
    if labels == "labels" and any(hasattr(type(module), "loss_function") for module in model.modules()):
        prepares = any(hasattr(type(module), "prepare_decoder_input_ids_from_labels") for module in model.modules())
        raise StackError(
            f'inputs: expected no labels with mode="{mode}", received {labels!r}: the model would compute one loss '
            'over all views. Leave them out and compute the loss in task_loss, or use mode="sequential"'
            + (". Then give decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels)" if prepares else "")
        )
