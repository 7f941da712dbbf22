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


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "none"),
        ({"q_length": None, "cache_position": torch.arange(LENGTH)}, "none"),
        ({"q_length": None, "cache_position": torch.arange(1)}, "whole"),
        ({"kv_length": LENGTH + 1}, "whole"),
        ({"q_length": torch.tensor(LENGTH)}, "whole"),
        ({"attention_mask": torch.ones(2, LENGTH, dtype=torch.bool)}, "whole"),
        ({"mask_function": lambda sample, head, row, key: key >= 0}, "whole"),
        ({"allow_is_causal_skip": False}, "whole"),
        ({"local_size": 6}, "blocks"),
        ({"local_size": 6, "kv_length": LENGTH + 1}, "whole"),
        ({"local_size": 6, "use_vmap": True}, "whole"),
        ({"local_size": 6, "q_length": torch.tensor(LENGTH)}, "whole"),
        ({"local_size": LENGTH}, "whole"),
        ({"local_size": LENGTH - 1}, "blocks"),
    ],
)
def test_which_masks_are_made(
    changed: dict[str, Any], expected: str, short_is_long: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mask where causality says it all, blocks for long windows, and what transformers makes in all other cases."""
    whole = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    monkeypatch.setattr(transformers_masks, "sdpa_mask", lambda *arguments, **options: whole)
    plain = {"batch_size": 2, "q_length": LENGTH, "kv_length": LENGTH}
    plain |= {"mask_function": transformers_masks.causal_mask_function}
    made = transformers_masks.mask_of(**plain | changed)
    assert (made is None, made is whole, isinstance(made, Blocks)) == tuple(
        expected == kind for kind in ("none", "whole", "blocks")
    )
    # Older releases may pass arguments by position: theirs are not looked into.
    assert transformers_masks.mask_of(2, **{name: x for name, x in plain.items() if name != "batch_size"}) is whole


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("window", "offsets"), [(6, (0, 0)), (21, (0, 0)), (21, (3, 0)), (21, (5, 2))])
def test_blocks_show_what_the_whole_mask_shows(
    window: int, offsets: tuple[int, int], padded: bool, short_is_long: list[Any]
) -> None:
    """Also where rows see whole blocks, and where rows or keys do not begin at position 0."""
    from transformers.masking_utils import sliding_window_causal_mask_function

    seen = inputs(padded=True)["attention_mask"].bool() if padded else None
    seen = None if seen is None else torch.nn.functional.pad(seen, (0, max(offsets)), value=True)
    options = {
        "batch_size": 2, "q_length": LENGTH, "kv_length": LENGTH, "q_offset": offsets[0], "kv_offset": offsets[1],
        "mask_function": sliding_window_causal_mask_function(window), "attention_mask": seen, "local_size": window,
    }  # fmt: skip
    blocks = transformers_masks.mask_of(**options)
    assert short_is_long == [blocks]
    whole = transformers_masks.sdpa_mask(**options, allow_is_causal_skip=False)
    assert torch.equal(blocks.dense(LENGTH, LENGTH).expand_as(whole), whole)
