"""Which text models of transformers `attach` reaches: the lists in `docs/start/transformers.md`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import attentiondrop as ad
from attentiondrop.torch import attach

transformers = pytest.importorskip("transformers")

PAGE = Path(__file__).parents[3] / "docs" / "start" / "transformers.md"
SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}
BOTH: dict[str, Any] = {
    "vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
#: Name on the page -> prefix of the classes, fields of the configuration, number of sites.
REACHED: dict[str, tuple[str, dict[str, Any], int]] = {
    "Marian": ("Marian", BOTH, 3),
    "Qwen": ("Qwen3", GROUPED, 2),
    "Phi": ("Phi", SIZES, 2),
    "GPT-OSS": ("GptOss", {**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1}, 2),
    "ModernBERT": ("ModernBert", {**SIZES, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2}, 2),
    "RoBERTa": ("Roberta", SIZES, 2),
    "Falcon": ("Falcon", {**{k: SIZES[k] for k in SIZES if k != "intermediate_size"}, "num_kv_heads": 2}, 2),
}
OUT_OF_REACH: dict[str, tuple[str, dict[str, Any]]] = {
    "Bloom": ("Bloom", {"vocab_size": 50, "hidden_size": 16, "n_layer": 1, "n_head": 2}),
    "DeBERTa": ("DebertaV2", SIZES),
    "GPT-J": ("GPTJ", {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2, "rotary_dim": 4}),
    "Longformer": ("Longformer", {**SIZES, "attention_window": 4}),
    "MPNet": ("MPNet", SIZES),
    "XLNet": ("XLNet", {"vocab_size": 50, "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}),
}


def model_of(prefix: str, fields: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}Model")(getattr(transformers, f"{prefix}Config")(**fields))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def test_the_page_names_them() -> None:
    reached, _, beyond = PAGE.read_text().partition("## Which models")[2].partition("cannot be reached")
    assert all(f"{name}" in reached for name in REACHED)
    assert all(f"{name}" in beyond for name in OUT_OF_REACH)


@pytest.mark.parametrize("name", REACHED)
def test_reached(name: str) -> None:
    """Every site acts in training, padding stays hidden, and evaluation is that of the plain model."""
    prefix, fields, sites = REACHED[name]
    model = model_of(prefix, fields).eval()
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    words = torch.arange(16).view(2, 8) % 30 + 5
    inputs = {"attention_mask": mask} | ({"decoder_input_ids": words[:, :4]} if fields is BOTH else {})
    with torch.no_grad():
        plain = model(words, **inputs)[0]
        attachment = attach(model, ad.DropKey(p=0.5))
        assert len(attachment.sites) == sites and not attachment.unreached
        assert torch.equal(model(words, **inputs)[0], plain)
        model.train()
        outputs = []
        for padding in (1, 2):
            torch.manual_seed(3)
            outputs.append(model(torch.where(mask == 0, padding, words), **inputs)[0])
        assert not torch.allclose(outputs[0][0], plain[0])
        seen = slice(None) if fields is BOTH else mask.bool()
        torch.testing.assert_close(outputs[0][seen], outputs[1][seen])


@pytest.mark.parametrize("name", OUT_OF_REACH)
def test_out_of_reach(name: str) -> None:
    with pytest.raises(ad.AttachError, match=r"(?s)found no attention in .* it computes its softmax itself, without"):
        attach(model_of(*OUT_OF_REACH[name]), ad.DropKey(p=0.5))
