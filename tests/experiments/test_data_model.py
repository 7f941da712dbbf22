"""The recipe and the model."""

from __future__ import annotations

import pytest
import torch

from attentiondrop import AttentionDropError
from attentiondrop.experiments.models import vit
from attentiondrop.experiments.recipe import Recipe


def test_dropout_sets_the_rates_of_the_model_and_no_others() -> None:
    rates = {
        name: module.p
        for name, module in vit.build(10, dropout=0.3).named_modules()
        if isinstance(module, torch.nn.Dropout)
    }
    assert rates["pos_drop"] == rates["blocks.0.attn.proj_drop"] == rates["blocks.3.mlp.drop1"] == 0.3
    assert rates["blocks.0.attn.attn_drop"] == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"weight_decay": -1.0},
        {"warmup": 2.0},
        {"samples": 0},
        {"device": "abacus"},
        {"data": "letters"},
    ],
)
def test_a_recipe_names_the_wrong_setting(wrong: dict[str, object]) -> None:
    with pytest.raises(AttentionDropError, match=next(iter(wrong))):
        Recipe(**wrong)  # type: ignore[arg-type]
