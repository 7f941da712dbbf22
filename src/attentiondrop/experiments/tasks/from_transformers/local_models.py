"""Build a model of transformers from a configuration, or load one from a local folder. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ....errors import ArgumentError, bad_argument, did_you_mean
from ...failures import in_words
from ..checkpoint_files import check_content
from ..optional_packages import imported
from .configured_rates import set_rates
from .transformers_settings import TransformersSettings


def build_model(
    auto_class: str,
    settings: TransformersSettings,
    *,
    sizes: Mapping[str, Any],
    rates: Mapping[str, float],
    seed: int,
    check: Callable[[Any], None] = lambda config: None,
    new_head: bool = False,
) -> nn.Module:
    """A model on the CPU, in float32. New weights depend only on `seed`.

    Args:
        auto_class: the class of transformers that knows the models of one purpose, `AutoModelForCausalLM` for example.
        settings: the `model` section of the recipe.
        sizes: fields of the configuration that the data decides. A model from a folder keeps its own vocabulary and
            number of positions.
        rates: rates that a method sets, instead of those in `settings`.
        seed: for new weights.
        check: raises if the configuration does not fit the data.
        new_head: whether what follows the body of the model may have new weights, if the folder has none that fit.
    """
    transformers = imported("transformers")
    check_content(settings)
    own = {"dropout": settings.dropout, "attention_dropout": settings.attention_dropout} | dict(rates)
    loaded = getattr(transformers, auto_class)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        try:
            config = _configuration(transformers, settings, sizes)
            set_rates(config, {name: rate for name, rate in own.items() if rate is not None})
            check(config)
            if settings.checkpoint is None:
                # Not with "sdpa" by name: some models have only eager attention, and transformers knows which.
                model = loaded.from_config(config)
            else:
                model = _loaded(loaded, settings.checkpoint, config, settings.arguments, new_head)
            if settings.checkpoint_activations:
                model.gradient_checkpointing_enable()
        except ArgumentError:
            raise
        except Exception as error:  # transformers raises many kinds of errors
            what = settings.name if settings.checkpoint is None else settings.checkpoint
            raise ArgumentError(f"model: {what} cannot be built: {in_words(error)}") from error
    result: nn.Module = model
    return result


def _loaded(auto_class: Any, folder: str, config: Any, arguments: Mapping[str, Any], new_head: bool) -> Any:
    """The model in a folder. transformers would give new weights to all that is missing there, and only log it."""
    model, report = auto_class.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        local_files_only=True,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    new = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})
    body = f"{model.base_model_prefix}."
    wrong = [name for name in new if not new_head or (name.startswith(body) and ".pooler." not in name)]
    if wrong:
        error = bad_argument(
            "model.checkpoint", f"weights of {type(model).__name__}", f"none that fit for {', '.join(wrong[:3])}"
        )
        hint = "; model.arguments changes the model in the folder: " * bool(arguments) + ", ".join(arguments)
        raise ArgumentError(f"{error}{hint}")
    return model


def _configuration(transformers: Any, settings: TransformersSettings, sizes: Mapping[str, Any]) -> Any:
    if settings.checkpoint is not None:
        kept = {name: size for name, size in sizes.items() if name not in ("vocab_size", "max_position_embeddings")}
        config = transformers.AutoConfig.from_pretrained(
            settings.checkpoint, local_files_only=True, **kept | settings.arguments
        )
    else:
        if settings.name not in transformers.CONFIG_MAPPING:
            error = bad_argument("model.name", "a model type of transformers, such as gpt2 or bert", settings.name)
            raise ArgumentError(f"{error}{did_you_mean(settings.name, transformers.CONFIG_MAPPING)}")
        own = {
            "num_hidden_layers": settings.layers,
            "num_attention_heads": settings.heads,
            "hidden_size": settings.width,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        if hasattr(transformers.CONFIG_MAPPING[settings.name](), "num_key_value_heads"):
            own["num_key_value_heads"] = settings.heads  # the default would be that of a large model
        config = transformers.AutoConfig.for_model(settings.name, **own | dict(sizes) | settings.arguments)
    _check_arguments(type(config), settings)
    return config


def _check_arguments(cls: Any, settings: TransformersSettings) -> None:
    """Refuse fields that the configuration does not know: transformers keeps them, and no model would read them."""
    usual = cls()
    for name, value in settings.arguments.items():
        # (What is known and kept under another name, such as rope_theta, is no attribute of that name.)
        if not hasattr(usual, name) and name in vars(cls(**{name: value})):
            error = bad_argument("model.arguments", f"fields of {cls.__name__}", name)
            raise ArgumentError(f"{error}{did_you_mean(name, vars(usual))}")
