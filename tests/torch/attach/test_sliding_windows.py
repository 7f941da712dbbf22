"""Sliding windows of transformers models: as a whole mask with sdpa, in blocks with our own implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attentiondrop as ad
import attentiondrop.integrations.transformers  # registers the name
from attentiondrop.torch import Blocks, attach
from attentiondrop.torch.attach import transformers_masks

transformers = pytest.importorskip("transformers")
LENGTH = 40


@pytest.fixture
def short_is_long(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Blocks for short windows, too; the list holds the masks that are made."""
    monkeypatch.setattr(transformers_masks, "LONG", 16)
    monkeypatch.setattr(transformers_masks, "SIZE", 8)
    made: list[Any] = []
    build = transformers_masks._in_blocks
    monkeypatch.setattr(transformers_masks, "_in_blocks", lambda **options: made.append(build(**options)) or made[-1])
    return made


def mistral(implementation: str, window: int = 6) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=window, attn_implementation=implementation,
    )  # fmt: skip
    return transformers.MistralForCausalLM(config).double()


def inputs(padded: bool) -> dict[str, Tensor]:
    found = {"input_ids": torch.randint(50, (2, LENGTH), generator=torch.Generator().manual_seed(1))}
    if padded:
        found["attention_mask"] = (torch.arange(LENGTH) >= torch.tensor([[0], [7]])).long()
    return found


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("spec", [None, "hard(p=0.5,k=3)", "blur(sigma_min=0.5,sigma_max=1.0)"])
def test_blocks_mean_the_same_as_the_whole_mask(spec: str | None, padded: bool, short_is_long: list[Any]) -> None:
    results = []
    for implementation in ("sdpa", "attentiondrop"):
        model = mistral(implementation)
        if spec is None:
            model.eval()
        else:
            attach(model, spec)
        torch.manual_seed(3)
        given = inputs(padded)
        output = model(**given, use_cache=False).logits
        # What padding sees is anybody's guess.
        counted = output[given["attention_mask"].bool()] if padded else output
        counted.square().sum().backward()
        results.append([counted.detach(), *(parameter.grad for parameter in model.parameters())])
    assert len(short_is_long) == 1 and isinstance(short_is_long[0], Blocks)
    assert (short_is_long[0].states == 0).any()
    for have, want in zip(*results, strict=True):
        torch.testing.assert_close(have, want)


def test_views_get_the_blocks_of_their_samples(short_is_long: list[Any]) -> None:
    from attentiondrop.torch import consistency_loss

    losses = []
    for implementation in ("sdpa", "attentiondrop"):
        model = mistral(implementation)
        attach(model, "hard(p=0.5,k=3)")
        torch.manual_seed(3)
        given = {**inputs(padded=True), "use_cache": False}
        result = consistency_loss(
            model, given, lambda output: output.logits.square().mean(), ad.Consistency(), mode="batch",
            logits=lambda output: output.logits, mask=given["attention_mask"].bool(),
        )  # fmt: skip
        losses.append(result.divergence)
    assert short_is_long[0].states.shape[0] == 4
    torch.testing.assert_close(*losses)


def test_a_window_that_covers_the_text_has_no_mask(short_is_long: list[Any]) -> None:
    model = mistral("attentiondrop", window=LENGTH)
    attach(model, "hard")
    model(**inputs(padded=False)).logits.sum().backward()
    assert not short_is_long
