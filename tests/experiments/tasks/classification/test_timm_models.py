"""Models of timm by name, for images of any size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attentiondrop import AttentionDropError
from attentiondrop.experiments.tasks.classification.settings import TimmSettings
from attentiondrop.experiments.tasks.classification.timm_models import build_model


class TestModels:
    def test_any_model_of_timm_fits_small_images(self) -> None:
        settings = TimmSettings("vit_tiny_patch16_224", patch_size=4, arguments={"depth": 2})
        model = build_model(settings, classes=7, channels=3, size=32, rates={"dropout": 0.2, "drop_path": 0.1}, seed=0)
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
        rates = {module.p for module in model.modules() if isinstance(module, nn.Dropout)}
        assert rates == {0.0, 0.2}  # the dropout of attention weights stays 0

    def test_the_rate_of_a_method_replaces_that_of_the_recipe(self) -> None:
        settings = TimmSettings("vit_tiny_patch16_224", patch_size=4, arguments={"depth": 3, "drop_path_rate": 0.1})
        fields = {"classes": 7, "channels": 3, "size": 32, "seed": 0}
        last = [
            build_model(settings, rates=rates, **fields).blocks[-1].drop_path1.drop_prob
            for rates in ({}, {"drop_path": 0.4}, {"dropout": 0.2})
        ]
        assert last == pytest.approx([0.1, 0.4, 0.1])

    def test_a_model_without_patches_takes_its_own_rate(self) -> None:
        model = build_model(TimmSettings("resnet10t"), classes=3, channels=1, size=32, rates={"dropout": 0.3}, seed=0)
        assert model.eval()(torch.zeros(2, 1, 32, 32)).shape == (2, 3)
        assert model.drop_rate == 0.3

    def test_wrong_models_are_refused(self) -> None:
        fields = {"classes": 3, "channels": 1, "size": 8, "rates": {}, "seed": 0}
        with pytest.raises(AttentionDropError, match=r"model\.name 'vit_huge_x': no such model"):
            build_model(TimmSettings("vit_huge_x"), **fields)
        with pytest.raises(AttentionDropError, match="model: vit_digits cannot be built with"):
            build_model(TimmSettings(arguments={"dept": 3}), **fields)
