"""The values of a mask that all layers share are read once in a forward pass."""

from __future__ import annotations

import gc
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop.torch import attach
from attentiondrop.torch.attach import shared_masks

transformers = pytest.importorskip("transformers")
transformers_attention = import_module("attentiondrop.torch.attach.transformers_attention")

LAYERS = 3
SIZES = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "vocab_size": 50}
SIZES |= {"intermediate_size": 32}


def encoder(layers: int = LAYERS) -> nn.Module:
    sizes = SIZES | {"num_hidden_layers": layers}
    config = transformers.BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return transformers.BertModel(config)


def decoder() -> nn.Module:
    return transformers.LlamaModel(transformers.LlamaConfig(**SIZES, num_key_value_heads=2))


def padded(side: str = "right") -> dict[str, Tensor]:
    mask = torch.ones(4, 40, dtype=torch.long)
    mask[1, 30:] = 0
    mask[2, 10:] = 0
    return {
        "input_ids": torch.arange(160).view(4, 40) % 50,
        "attention_mask": mask if side == "right" else mask.flip(1),
    }


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was compared with `torch.equal`."""
    found: list[Any] = []
    equal = torch.equal

    def noting(one: Tensor, other: Tensor) -> bool:
        found.append(one.shape)
        return equal(one, other)

    monkeypatch.setattr(torch, "equal", noting)
    return found


def output(model: nn.Module, **inputs: Tensor) -> Tensor:
    torch.manual_seed(0)
    return model(**inputs).last_hidden_state


@pytest.mark.parametrize(("make", "expected"), [(encoder, 1), (decoder, 2)])
def test_one_layer_reads_for_all(make: Callable[[], nn.Module], expected: int, readings: list[Any]) -> None:
    model = make().train()
    attach(model, ad.BlurSmoothing(sigma_max=1.0), backend="fused")
    output(model, **padded())
    assert len(readings) == expected
    output(model, **padded())
    assert len(readings) == 2 * expected


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("make", [encoder, decoder])
def test_the_result_is_the_same(make: Callable[[], nn.Module], side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = make().train()
    attach(model, ad.BlurSmoothing(sigma_max=1.0))
    found = output(model, **padded(side))
    monkeypatch.setattr(transformers_attention, "simple_form", lambda mask, site: (mask, None))
    assert torch.equal(found, output(model, **padded(side)))


def test_other_values_in_the_same_memory_are_read_again() -> None:
    """`.data` tells nobody that values have changed."""
    model = encoder().train()
    attach(model, ad.BlurSmoothing(sigma_max=1.0))
    ids = padded()["input_ids"]
    mask = torch.ones(4, 1, 40, 40, dtype=torch.bool)
    output(model, input_ids=ids, attention_mask=mask)
    other = mask.tril()
    other[2, ..., :7] = False
    mask.data.copy_(other)
    assert torch.equal(
        output(model, input_ids=ids, attention_mask=mask), output(model, input_ids=ids, attention_mask=other.clone())
    )


def test_a_change_between_two_layers_is_noticed() -> None:
    model = encoder().train()
    attach(model, ad.BlurSmoothing(sigma_max=1.0))
    first, second, *_ = (module for module in model.modules() if hasattr(module, "_attentiondrop_site"))
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    one = shared_masks.simple_form(mask, first._attentiondrop_site)
    mask.tril_()
    two = shared_masks.simple_form(mask, second._attentiondrop_site)
    assert (one[1], two[1]) == (None, (-1, 0)) and one[0].shape == two[0].shape == (2, 1, 1, 8)


def test_only_a_blur_reads(readings: list[Any]) -> None:
    model = encoder().train()
    attach(model, ad.HardMasking(p=0.5, k=3))
    output(model, **padded())
    model = encoder().eval()
    attach(model, ad.BlurSmoothing(sigma_max=1.0))
    output(model, **padded())
    assert readings == []


@pytest.mark.parametrize("rows_differ", [False, True])
def test_an_additive_mask_hides_the_same_keys(rows_differ: bool) -> None:
    model, ids = encoder().train(), padded()["input_ids"]
    attach(model, ad.BlurSmoothing(sigma_max=1.0))
    visible = padded()["attention_mask"].bool()[:, None, None, :].repeat(1, 1, 40, 1)
    if rows_differ:
        visible = visible.tril()
    added = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
    torch.testing.assert_close(
        output(model, input_ids=ids, attention_mask=added), output(model, input_ids=ids, attention_mask=visible)
    )


def test_passes_in_inference_mode() -> None:
    """The tensors made there do not count their changes."""
    model = encoder().train()
    attach(model, ad.BlurSmoothing(sigma_max=1.0))
    with torch.inference_mode():
        found = output(model, **padded())
    assert torch.equal(found, output(model, **padded()))


def test_masks_are_not_kept() -> None:
    gc.collect()
    before = len(shared_masks._forms._known)
    model = encoder().train()
    attach(model, ad.BlurSmoothing(sigma_max=1.0))
    output(model, **padded()).sum().backward()
    gc.collect()
    assert len(shared_masks._forms._known) == before


def test_a_compiled_encoder_runs_fused_with_a_mask_of_keys() -> None:
    """As docs/start/transformers.md says: compiled code cannot look into a full mask."""
    model, inputs = encoder(layers=1), padded()  # one layer shows it, in a third of the time
    keys = inputs["attention_mask"][:, None, None, :].bool()
    with torch.no_grad():
        plain = model.eval()(**inputs).last_hidden_state
        assert torch.equal(plain, model(inputs["input_ids"], attention_mask=keys).last_hidden_state)
    attach(model.train(), ad.BlurSmoothing(sigma_max=1.0), backend="fused")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert compiled(inputs["input_ids"], attention_mask=keys).last_hidden_state.isfinite().all()
    # (In a whole model, the compiler would try each of the functions that called the one that failed.)
    model.encoder.layer[0].compile(backend="eager")
    with pytest.raises(ad.BackendError, match="cannot be read while compiling"):
        model(**inputs)
