"""Models of transformers that have our attention implementation, but no attachment."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedModel
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from attentiondrop.torch.attach import transformers_attention as _registered  # noqa: F401
from attentiondrop.torch.attach import transformers_masks
from attentiondrop.torch.attach.transformers_names import NAME


def decoder() -> PreTrainedModel:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1, n_head=2, n_embd=8, n_positions=12, vocab_size=9, bos_token_id=None, eos_token_id=None
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def test_a_model_without_attachment_is_plain_also_in_its_dropout() -> None:
    model, tokens, found = decoder(), torch.arange(9)[None], []
    for name in ("sdpa", NAME):
        model.set_attn_implementation(name)
        torch.manual_seed(1)
        found.append(model.train()(input_ids=tokens).logits)
    assert torch.equal(*found)


@pytest.mark.parametrize("lengths", [{"q_length": 8}, {"cache_position": torch.arange(8)}], ids=["new", "old"])
def test_a_mask_that_is_only_causal_is_no_tensor(lengths: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where transformers makes one: while it believes that somebody records what happens."""
    monkeypatch.setattr(transformers_masks, "sdpa_mask", lambda **options: "a tensor")
    plain = {"batch_size": 1, **lengths, "kv_length": 8, "kv_offset": 0, "mask_function": causal_mask_function}
    assert transformers_masks.mask_of(**plain, attention_mask=None) is None
    others = [
        {"attention_mask": torch.ones(1, 8, dtype=torch.bool)},
        {"mask_function": sliding_window_causal_mask_function(4)},
        {"local_size": 4},
        {"kv_length": 9},
        {"allow_is_causal_skip": False},
    ]
    assert [transformers_masks.mask_of(**plain | other) for other in others] == ["a tensor"] * len(others)
