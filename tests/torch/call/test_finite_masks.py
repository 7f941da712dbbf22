"""Additive masks with large finite numbers: they count as biases, and people are told."""

from __future__ import annotations

import pytest
import torch

import attentiondrop as ad
from attentiondrop.errors import forget_warnings
from attentiondrop.torch import AttentionDrop, attention
from attentiondrop.torch.call import finite_masks
from attentiondrop.torch.call.finite_masks import look_again
from attentiondrop.torch.call.visibility import is_hidden


@pytest.mark.parametrize("value", [-1e9, -1e4, -100.0, -30.0, torch.finfo(torch.float32).min, -torch.inf])
def test_only_what_means_to_hide_and_does_not_is_warned_of(value: float, recwarn: pytest.WarningsRecorder) -> None:
    forget_warnings()
    look_again()
    q = torch.randn(1, 2, 6, 8)
    mask = torch.zeros(6, 6).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), value)
    for drop in (ad.HardMasking(), None):
        attention(q, q, q, drop, attn_mask=mask, backend="eager")
    found = [str(warning.message) for warning in recwarn.list]
    assert len(found) == (value in (-1e9, -1e4, -100.0))
    assert not found or f"numbers of {value:.4g} or less that count as a bias, not as hidden keys" in found[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_of_the_lowest_number_hides_a_key(dtype: torch.dtype) -> None:
    limit = torch.finfo(dtype).min / 2
    values = torch.tensor([0.0, limit * 0.99, limit, 2 * limit, -torch.inf, torch.nan], dtype=dtype)
    assert is_hidden(values).tolist() == [False, False, True, True, True, False]


@pytest.mark.parametrize("value", [-1e9, -1e4, -100.0, torch.finfo(torch.float32).min, -torch.inf])
@pytest.mark.parametrize("as_mask", [False, True])
def test_logits_that_a_layer_masks_itself(value: float, as_mask: bool, recwarn: pytest.WarningsRecorder) -> None:
    forget_warnings()
    look_again()
    drop, logits = AttentionDrop(ad.BlurSmoothing()), torch.randn(1, 2, 6, 6)
    mask = torch.zeros(6, 6).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), value)
    arguments = (logits, mask) if as_mask else (logits + mask,)
    drop.eval()(*arguments)
    assert not recwarn.list
    drop.train()(*arguments)
    found = [str(warning.message) for warning in recwarn.list]
    # Logits, unlike a mask, may be as low as -100 by themselves.
    assert len(found) == (value in ((-1e9, -1e4, -100.0) if as_mask else (-1e9, -1e4)))
    assert not found or "a perturbation may show these keys" in found[0]


def test_logits_that_explode_are_not_masked(recwarn: pytest.WarningsRecorder) -> None:
    forget_warnings()
    look_again()
    AttentionDrop("hard")(torch.randn(1, 2, 50, 50) * 1e5)
    assert not recwarn.list


@pytest.mark.parametrize("slope", [0.5, 4.0])
def test_a_bias_that_falls_with_the_distance_is_none_of_them(slope: float, recwarn: pytest.WarningsRecorder) -> None:
    forget_warnings()
    look_again()
    q, positions = torch.randn(1, 1, 200, 4), torch.arange(200.0)
    attention(q, q, q, ad.HardMasking(), attn_mask=-slope * (positions[:, None] - positions).abs(), backend="eager")
    assert not recwarn.list


@pytest.mark.parametrize("slope", [0.5, 4.0])
def test_a_mask_beside_such_a_bias_is_one_of_them(slope: float) -> None:
    forget_warnings()
    look_again()
    q, positions = torch.randn(1, 1, 200, 4), torch.arange(200.0)
    distance = positions[:, None] - positions
    mask = (-slope * distance.abs()).masked_fill(distance < 0, -1e9)
    with pytest.warns(ad.AttentionDropWarning, match="that count as a bias, not as hidden keys"):
        attention(q, q, q, ad.HardMasking(), attn_mask=mask, backend="eager")


def test_few_masks_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, each look waits for the device."""
    looks = []
    monkeypatch.setattr(finite_masks, "is_untouched", lambda: looks.append(1) or True)
    look_again()
    q, mask = torch.randn(1, 1, 4, 8), torch.zeros(4, 4)
    for _ in range(40):
        attention(q, q, q, ad.DropKey(), attn_mask=mask, backend="eager")
    assert len(looks) == 16
