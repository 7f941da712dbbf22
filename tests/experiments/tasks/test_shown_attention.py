"""Attention before and after a method: before is the model's own, after is what the method makes of it."""

from __future__ import annotations

import pytest
import torch

import attentiondrop as ad
from attentiondrop.experiments.tasks.shown_attention import attention_map, last_attention

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model():
    config = transformers.GPT2Config(
        vocab_size=20, n_layer=2, n_head=2, n_embd=16, n_positions=16, initializer_range=1.0
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def test_before_is_the_attention_of_the_model_and_after_that_of_the_method(model) -> None:
    inputs = {"input_ids": torch.arange(8)[None]}
    before_state, generator = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    model.train()
    found = last_attention(model, inputs, ad.HardMasking(p=0.5, k=1, fill="-inf"))
    assert model.training and all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(before_state[key], value) for key, value in model.state_dict().items())
    model.set_attn_implementation("eager")
    own = model.eval()(**inputs, output_attentions=True).attentions[-1]
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(found.before, own)
    # Some rows lost their largest weight. A row with a single key keeps it.
    gone = found.after.gather(-1, own.argmax(-1, keepdim=True)) == 0
    assert gone[:, :, 1:].any() and not gone.all() and not gone[:, :, 0].any()
    assert found.after.sum(-1).allclose(torch.ones(()))
    kept = ~gone.squeeze(-1)
    torch.testing.assert_close(found.after[kept], own[kept])


def test_a_map_is_plain_data(model) -> None:
    inputs, texts = {"input_ids": torch.arange(4)[None]}, list("abcd")
    found = attention_map("title", model, inputs, ad.DropKey(p=0.5), texts, texts)
    assert found.queries == found.keys == ("a", "b", "c", "d")
    assert [len(row) for row in found.before] == [4] * 4 and found.after not in (None, found.before)
    assert found.before[0] == (1.0, 0.0, 0.0, 0.0)
    assert attention_map("title", model, inputs, None, texts, texts).after is None
