"""A decoder of transformers for the vocabulary and the blocks of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ....errors import ArgumentError, bad_argument
from ...failures import in_words
from ..eval_mode import evaluating
from ..from_transformers.local_models import build_model
from .language_settings import DecoderSettings


def build_decoder(
    settings: DecoderSettings, *, vocabulary: int, block: int, rates: Mapping[str, float], seed: int
) -> nn.Module:
    """A model for `vocabulary` tokens in blocks of `block`, on the CPU. New weights depend only on `seed`."""

    def check(config: Any) -> None:
        """Refuse data that does not fit. Only a pretrained model can differ."""
        positions = getattr(config, "max_position_embeddings", None) or block
        if config.vocab_size < vocabulary:
            raise bad_argument("data", f"at most the {config.vocab_size} tokens of {settings.checkpoint}", vocabulary)
        if positions < block:
            raise bad_argument("data.block", f"at most the {positions} positions of {settings.checkpoint}", block)
        # With a number here, every call would read its tokens back to look for padding. We never pad.
        config.pad_token_id = None

    sizes = {"vocab_size": vocabulary, "max_position_embeddings": block}
    model = build_model("AutoModelForCausalLM", settings, sizes=sizes, rates=rates, seed=seed, check=check)
    _check_causal(model, settings.checkpoint or settings.name, min(block, _LOOKED_AT))
    if getattr(model, "_supports_attention_backend", False):
        _without_causal_masks(model)
    return model


#: Tokens that a new model is tried on.
_LOOKED_AT = 8


@torch.no_grad()
def _check_causal(model: nn.Module, name: str, length: int) -> None:
    """Refuse a model whose tokens see later ones, as those of an encoder do: its loss would mean nothing."""
    from .no_cache import WITHOUT_CACHE

    tokens = torch.zeros(2, length, dtype=torch.int64)
    tokens[1, -1] = 1
    with evaluating(model):
        try:
            plain = model(input_ids=tokens).logits
        except Exception as error:  # it may be of any kind
            raise ArgumentError(
                f"model: {name} cannot run on {length} tokens: {in_words(error)} (its pad_token_id is None, since this "
                "task never pads: a model that looks for padding cannot be used)"
            ) from error
        first, second = plain[:, :-1]
        if not torch.allclose(first, second, rtol=1e-3, atol=1e-5):
            raise bad_argument(
                "model.name",
                "a model whose tokens see no later ones (an encoder may need model.arguments={is_decoder: true})",
                name,
            )
        try:
            uncached = model(input_ids=tokens, **WITHOUT_CACHE).logits
        except Exception as error:
            raise _needs_cache(name, in_words(error)) from error
        if not torch.allclose(plain, uncached, rtol=1e-3, atol=1e-5):
            raise _needs_cache(name, "its predictions change")


def _needs_cache(name: str, why: str) -> ArgumentError:
    return ArgumentError(
        f"model.name: expected a model of attention layers alone, received {name!r}, which cannot be trained without a "
        f"cache, as models with recurrent layers: {why}"
    )


def _without_causal_masks(model: Any) -> None:
    """With our implementation a causal mask is never a tensor. In a recorded step it would be one."""
    from ....torch.attach import transformers_attention as _registered  # noqa: F401
    from ....torch.attach.transformers_names import NAME

    model.set_attn_implementation(NAME)
