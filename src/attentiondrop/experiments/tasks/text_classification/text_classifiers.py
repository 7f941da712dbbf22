"""A classifier of transformers for the tokens and classes of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ....errors import bad_argument
from ..from_transformers.local_models import build_model
from .labelled_data import LabelledData
from .labelled_settings import ClassifierSettings

#: Model types that number the positions of a text from the number of the padding on.
_COUNT_FROM_PADDING = frozenset(
    ("camembert", "data2vec-text", "ibert", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta")
)


def build_classifier(
    settings: ClassifierSettings, data: LabelledData, rates: Mapping[str, float], seed: int
) -> nn.Module:
    """A model on the CPU. New weights, those of the head included, depend only on `seed`."""
    length = data.tokens[next(iter(data.tokens))].shape[1]

    def check(config: Any) -> None:
        """Refuse data that does not fit. Only a pretrained model can differ."""
        if config.vocab_size < data.vocabulary:
            raise bad_argument(
                "data.tokenizer", f"at most the {config.vocab_size} tokens of {settings.checkpoint}", data.vocabulary
            )
        positions = getattr(config, "max_position_embeddings", None) or length
        if positions < length:
            raise bad_argument("data.length", f"at most the {positions} positions of {settings.checkpoint}", length)

    sizes = {
        "vocab_size": data.vocabulary,
        "max_position_embeddings": length + (data.pad + 1 if settings.name in _COUNT_FROM_PADDING else 0),
        "pad_token_id": data.pad,
        "num_labels": len(data.classes),
    }
    return build_model(
        "AutoModelForSequenceClassification",
        settings,
        sizes=sizes,
        rates=rates,
        seed=seed,
        check=check,
        new_head=True,
    )
