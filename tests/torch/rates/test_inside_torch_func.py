"""Rates that are measured, inside of `torch.func`: nothing can be kept there, and a warning says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import attentiondrop as ad
from attentiondrop.torch import attach

SPECS = [
    (ad.BlurSmoothing(ad.EntropyTarget(0.3, start=1.0, high=2.0)), r"An adaptive rate \(EntropyTarget\)"),
    (ad.HeadMask(1, choice="important"), r"The importance of heads \(HeadMask\)"),
]


@pytest.mark.parametrize("spec, what", SPECS, ids=["adaptive", "important"])
def test_gradients_of_samples(spec: ad.Spec, what: str) -> None:
    model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    attachment = attach(model, spec)
    x = torch.randn(3, 7, 16)
    model(x).square().sum().backward()  # rates and means are somewhere
    before = attachment.state_dict()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: dict[str, Tensor], sample: Tensor) -> Any:
        return functional_call(model, weights, (sample[None],)).square().sum()

    per_sample = vmap(grad(loss), in_dims=(None, 0), randomness="different")
    with pytest.warns(ad.AttentionDropWarning, match=f"{what} is not measured inside of torch.func") as found:
        gradients = per_sample(weights, x)
    assert len(found) == 1 and found[0].filename == __file__
    assert all(bool(gradient.isfinite().all()) for gradient in gradients.values())
    per_sample(weights, x)  # one warning is enough
    after = attachment.state_dict()
    assert before["adaptive"] == after["adaptive"]
    torch.testing.assert_close(before["importance"], after["importance"])


def test_what_is_only_watched_needs_no_warning() -> None:
    model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    attachment = attach(model, "hard(p=0.3,k=3)")
    attachment.watch()
    grad(lambda x: model(x).square().sum())(torch.randn(2, 7, 16))
    assert not attachment.stats()
