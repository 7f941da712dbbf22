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
    (
        *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm"),
        *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    )
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
        most = getattr(config, "max_position_embeddings", None)
        positions = length if most is None else most - _before_the_text(config.model_type, data.pad)
        if positions < length:
            raise bad_argument("data.length", f"at most the {positions} positions of {settings.checkpoint}", length)

    sizes = {
        "vocab_size": data.vocabulary,
        "max_position_embeddings": length + _before_the_text(settings.name, data.pad),
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


def _before_the_text(model_type: str, pad: int) -> int:
    """How many positions of a model of this type come before that of the first token."""
    if model_type == "mpnet":
        return 2  # it takes 1 for the number of the padding, whatever that is
    return pad + 1 if model_type in _COUNT_FROM_PADDING else 0
