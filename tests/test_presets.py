"""Presets are what the published studies support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attach, consistency_loss


def test_vision_is_the_method_that_earned_its_claim(docs_module: Callable[[str], Any]) -> None:
    (earned,) = [row for row in docs_module("claims").headlines() if row[0] == "H3"]
    assert earned[3] == f"`{ad.presets.vision()}`" and earned[-1] == "**earned**"


def test_a_preset_brings_the_settings_of_its_loss() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, num_layers=2), nn.Linear(16, 5))
    attach(model, ad.presets.vision())
    x, labels = torch.randn(4, 7, 16), torch.randint(5, (4, 7))
    result = consistency_loss(model, x, lambda y: F.cross_entropy(y.mT, labels))
    assert result.divergence > 0
    torch.testing.assert_close(result.loss, result.task + 3.0 * result.divergence)
