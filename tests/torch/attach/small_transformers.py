"""Tiny random models of transformers, what to feed them, and how many sites they have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from checks import randomise
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

LENGTH, VALID = 8, 5
#: Sizes under the names that the configurations of most models use.
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass
class Model:
    """How to build a model, what to feed it, and how many sites it has. `masks` name the arguments that hide padding."""

    build: Callable[[], nn.Module]
    sites: int
    inputs: Callable[[], dict[str, Tensor]]
    padded: tuple[tuple[str, str], ...] = ()
    #: Which inputs the output has the positions of.
    positions: str = "input_ids"
    pick: Callable[[Any], Tensor] = lambda output: output[0]
    checkpointing: bool = True


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(3, 50, (2, length), generator=torch.Generator().manual_seed(0))


def padding(length: int = LENGTH, valid: int = VALID) -> Tensor:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, valid:] = 0
    return mask


def text() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "attention_mask": padding()}


def two_texts() -> dict[str, Tensor]:
    return text() | {"decoder_input_ids": tokens(6), "decoder_attention_mask": padding(6, 4)}


def images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}


def config(name: str, **fields: Any) -> Any:
    return getattr(transformers, name)(**fields)


TEXT = (("input_ids", "attention_mask"),)
BOTH = (*TEXT, ("decoder_input_ids", "decoder_attention_mask"))

MODELS = {
    "bert": Model(lambda: transformers.BertModel(config("BertConfig", **SIZES, **NO_DROPOUT)), 2, text, TEXT),
    "vit": Model(
        lambda: transformers.ViTModel(
            config("ViTConfig", **{**SIZES, **NO_DROPOUT, "image_size": 16, "patch_size": 4})
        ),
        2,
        images,
    ),
    "gpt2": Model(
        lambda: transformers.GPT2Model(
            config(
                "GPT2Config",
                vocab_size=50,
                n_embd=16,
                n_layer=2,
                n_head=4,
                n_positions=32,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=1,
                eos_token_id=2,
            )
        ),
        2,
        text,
        TEXT,
    ),
    "llama": Model(
        lambda: transformers.LlamaModel(config("LlamaConfig", **SIZES, num_key_value_heads=2)), 2, text, TEXT
    ),
    "gemma2": Model(
        lambda: transformers.Gemma2Model(
            config(
                "Gemma2Config", **SIZES, num_key_value_heads=2, head_dim=4, sliding_window=3, query_pre_attn_scalar=4
            )
        ),
        2,
        text,
        TEXT,
    ),
    "t5": Model(
        lambda: transformers.T5Model(
            config(
                "T5Config",
                vocab_size=50,
                d_model=16,
                d_kv=4,
                d_ff=32,
                num_layers=2,
                num_heads=4,
                dropout_rate=0.0,
                pad_token_id=0,
                eos_token_id=2,
                decoder_start_token_id=0,
            )
        ),
        6,
        two_texts,
        BOTH,
        "decoder_input_ids",
    ),
    "bart": Model(
        lambda: transformers.BartModel(
            config(
                "BartConfig",
                vocab_size=50,
                d_model=16,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=32,
                decoder_ffn_dim=32,
                max_position_embeddings=32,
                dropout=0.0,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=2,
                forced_eos_token_id=2,
            )
        ),
        6,
        two_texts,
        BOTH,
        "decoder_input_ids",
    ),
    "clip": Model(
        lambda: transformers.CLIPModel(
            config(
                "CLIPConfig",
                text_config={**SIZES, "projection_dim": 16},
                vision_config={
                    "hidden_size": 16,
                    "intermediate_size": 32,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "image_size": 16,
                    "patch_size": 4,
                    "projection_dim": 16,
                },
                projection_dim=16,
            )
        ),
        4,
        lambda: {"input_ids": torch.cat([tokens()[:, :-1], torch.tensor([[2], [2]])], 1)} | images(),
        pick=lambda output: torch.cat([output.text_embeds, output.image_embeds], -1),
    ),
    "clip text": Model(lambda: transformers.CLIPTextModel(config("CLIPTextConfig", **SIZES)), 2, text, TEXT),
    "whisper": Model(
        lambda: transformers.WhisperModel(
            config(
                "WhisperConfig",
                vocab_size=50,
                num_mel_bins=8,
                d_model=16,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=32,
                decoder_ffn_dim=32,
                max_source_positions=10,
                max_target_positions=16,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=1,
            )
        ),
        6,
        lambda: {
            "input_features": torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(0)),
            "decoder_input_ids": tokens(6),
            "decoder_attention_mask": padding(6, 4),
        },
        (("decoder_input_ids", "decoder_attention_mask"),),
        "decoder_input_ids",
    ),
}


def build(key: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[key].build()
    if options:
        model.set_attn_implementation(**options)
    return randomise(model, 1.5)


def runner(key: str) -> Callable[[nn.Module], Tensor]:
    inputs, pick = MODELS[key].inputs(), MODELS[key].pick
    cached = key in ("gpt2", "llama", "gemma2", "t5", "bart", "whisper")
    options = {"use_cache": False} if cached else {}
    return lambda model: pick(model(**inputs, **options))


def checkpointing(model: Any) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if hasattr(model, "enable_input_require_grads"):
        model.enable_input_require_grads()
