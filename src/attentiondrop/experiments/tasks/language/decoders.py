"""Build a decoder of transformers from its settings, or load one from a local folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ....errors import ArgumentError, bad_argument
from ...failures import in_words
from ..text.optional_packages import imported
from ..transformers_rates import set_rates
from .settings import DecoderSettings


def build_decoder(
    settings: DecoderSettings, *, vocabulary: int, block: int, rates: Mapping[str, float], seed: int
) -> nn.Module:
    """A model for `vocabulary` tokens in blocks of `block`, on the CPU. New weights depend only on `seed`."""
    transformers = imported("transformers")
    rates = {"dropout": settings.dropout, "attention_dropout": settings.attention_dropout} | dict(rates)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        try:
            config = _configuration(transformers, settings, vocabulary, block)
            set_rates(config, rates)
            _check(config, settings, vocabulary, block)
            loaded = transformers.AutoModelForCausalLM
            if settings.checkpoint is None:
                model = loaded.from_config(config, attn_implementation="sdpa")
            else:
                model = loaded.from_pretrained(
                    settings.checkpoint,
                    config=config,
                    attn_implementation="sdpa",
                    dtype=torch.float32,
                    local_files_only=True,
                )
            if settings.checkpoint_activations:
                model.gradient_checkpointing_enable()
        except ArgumentError:
            raise
        except Exception as error:  # transformers raises many kinds of errors
            what = settings.name if settings.checkpoint is None else settings.checkpoint
            raise ArgumentError(f"model: {what} cannot be built: {in_words(error)}") from error
    result: nn.Module = model
    return result


def _configuration(transformers: Any, settings: DecoderSettings, vocabulary: int, block: int) -> Any:
    if settings.checkpoint is not None:
        config = transformers.AutoConfig.from_pretrained(
            settings.checkpoint, local_files_only=True, **settings.arguments
        )
    else:
        if settings.name not in transformers.CONFIG_MAPPING:
            raise bad_argument("model.name", "a model type of transformers, such as gpt2 or llama", settings.name)
        sizes = {
            "vocab_size": vocabulary,
            "max_position_embeddings": block,
            "num_hidden_layers": settings.layers,
            "num_attention_heads": settings.heads,
            "hidden_size": settings.width,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        config = transformers.AutoConfig.for_model(settings.name, **sizes | settings.arguments)
    # With a number here, every call would read its tokens back to look for padding. We never pad.
    config.pad_token_id = None
    return config


def _check(config: Any, settings: DecoderSettings, vocabulary: int, block: int) -> None:
    """Refuse data that does not fit the model. Only a pretrained one can differ."""
    positions = getattr(config, "max_position_embeddings", None) or block
    if config.vocab_size < vocabulary:
        raise bad_argument("data", f"at most the {config.vocab_size} tokens of {settings.checkpoint}", vocabulary)
    if positions < block:
        raise bad_argument("data.block", f"at most the {positions} positions of {settings.checkpoint}", block)
