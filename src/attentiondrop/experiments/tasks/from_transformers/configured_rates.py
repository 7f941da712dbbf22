"""Set the dropout rates in a configuration of transformers, whose models name them differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import ArgumentError, bad_argument

#: Rate of a method or recipe -> the names that it has in configurations.
NAMES = {
    "dropout": (
        "resid_pdrop",
        "embd_pdrop",
        "resid_dropout",
        "residual_dropout",
        "embed_dropout",
        "dropout_p",
        "hidden_dropout_prob",
        "hidden_dropout",
        "dropout",
        "dropout_rate",
        "activation_dropout",
        "embedding_dropout",
        "mlp_dropout",
        "seq_classif_dropout",
        "classifier_dropout",
        "classifier_dropout_prob",
        "classifier_dropout_rate",
    ),
    "attention_dropout": ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob"),
    "drop_path": ("drop_path_rate",),
}
#: Model type -> names that its configuration has, but no code of the model reads.
_UNREAD = {"mpt": ("resid_pdrop",)}


def set_rates(config: Any, rates: Mapping[str, float]) -> None:
    """Set each rate under all the names that it has in `config`. A rate above zero that has none is an error."""
    for rate, value in rates.items():
        read = [name for name in NAMES[rate] if name not in _UNREAD.get(config.model_type, ())]
        known = [name for name in read if hasattr(config, name)]
        if not known and value > 0:
            error = bad_argument(
                rate, f"0 for {config.model_type}, whose configuration has none of {', '.join(read)}", value
            )
            raise ArgumentError(f"{error}: choose methods without {rate}, or another model")
        for name in known:
            setattr(config, name, value)
