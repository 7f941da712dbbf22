"""Inputs that hold samples must all have the batch as their first dimension, or their samples do not fit together.

Models for several senses often take one row for each image, patch or text of a batch: `pixel_values` of Qwen2-VL hold
the patches of all images, `input_ids` of OWL-ViT several texts for each image. Such a tensor is repeated for no view.
Some models then fail somewhere inside. Others give a wrong result without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .stacked_batch import StackError

#: Arguments of transformers that hold samples. Masks and positions are not among them: they may be broadcast.
_SAMPLES = (
    "input_ids",
    "inputs_embeds",
    "decoder_input_ids",
    "decoder_inputs_embeds",
    "pixel_values",
    "pixel_values_videos",
    "input_features",
    "input_values",
)


def refuse_other_batches(arguments: Mapping[str, Any], mode: str) -> None:
    """Raise `StackError` if these keyword arguments of a model hold batches of different sizes."""
    given = {name: x for name in _SAMPLES if isinstance(x := arguments.get(name), Tensor) and x.dim() > 0}
    if len({x.shape[0] for x in given.values()}) > 1:
        shapes = ", ".join(f"{name} of shape {list(x.shape)}" for name, x in given.items())
        raise StackError(
            f'inputs: expected the same batch as the first dimension of all samples with mode="{mode}", received '
            f'{shapes}: use mode="sequential"'
        )
