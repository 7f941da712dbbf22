"""The `model` section of a recipe for models of transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ....errors import bad_argument
from ....validation import integer, number
from ..checkpoint_files import CheckpointSettings


@dataclass(frozen=True)
class TransformersSettings(CheckpointSettings):
    """A model of transformers, new or from a local folder.

    Attributes:
        name: a model type of transformers, such as `gpt2`, `llama` or `bert`.
        checkpoint, checkpoint_sha256: a local folder with configuration and weights. Then the model is the one in the
            folder, whatever `name`, `layers`, `heads` and `width` say.
        layers, heads, width: the size of a new model.
        dropout: of activations, in every layer of the model that has one; None: as the configuration says. The method
            `dropout` replaces it.
        attention_dropout: of attention weights, by the model itself; None: as the configuration says.
        checkpoint_activations: recompute activations in the backward pass: less memory, more time, the same numbers.
        arguments: more fields of the configuration.
    """

    name: str = ""
    layers: int = 2
    heads: int = 2
    width: int = 32
    dropout: float | None = None
    attention_dropout: float | None = None
    checkpoint_activations: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width"):
            integer(f"model.{name}", getattr(self, name), minimum=1)
        for name in ("dropout", "attention_dropout"):
            if getattr(self, name) is not None:
                number(f"model.{name}", getattr(self, name), 0.0, 1.0)
        if self.width % self.heads:
            raise bad_argument("model.width", f"a multiple of the {self.heads} heads", self.width)

    def check_tokenizer(self, tokenizer: str | None) -> None:
        """Refuse a pretrained model without a tokenizer: for its weights, our numbers of words would be any words."""
        if self.checkpoint is not None and tokenizer is None:
            raise bad_argument("data.tokenizer", "the folder of the tokenizer of model.checkpoint", tokenizer)
