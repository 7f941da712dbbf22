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

    @pytest.mark.parametrize(
        ("name", "size", "arguments"),
        [
            ("swin_tiny_patch4_window7_224", 224, {"depths": (1,), "num_heads": (1,), "embed_dim": 8}),
            ("cait_xxs24_224", 224, {"depth": 1, "embed_dim": 24, "num_heads": 1}),
        ],
    )
    def test_dropout_is_in_the_body_of_every_model_that_has_it_there(self, name: str, size: int, arguments) -> None:
        settings, fields = TimmSettings(name, arguments=arguments), {"classes": 3, "channels": 3, "size": size}
        model, plain = (build_model(settings, rates=rates, seed=0, **fields) for rates in ({"dropout": 0.3}, {}))
        rates = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
        dropping = [name for name, rate in rates.items() if rate > 0]
        assert any("mlp" in name for name in dropping) and any(name.endswith("attn.proj_drop") for name in dropping)
        assert not any(name.startswith("head") or "attn_drop" in name for name in dropping)
        assert all(torch.equal(x, y) for x, y in zip(model.parameters(), plain.parameters(), strict=True))

    def test_wrong_models_are_refused(self) -> None:
        fields = {"classes": 3, "channels": 1, "size": 8, "rates": {}, "seed": 0}
        with pytest.raises(AttentionDropError, match=r"model\.name 'vit_huge_x': no such model"):
            build_model(TimmSettings("vit_huge_x"), **fields)
        with pytest.raises(AttentionDropError, match="model: vit_digits cannot be built with"):
            build_model(TimmSettings(arguments={"dept": 3}), **fields)
