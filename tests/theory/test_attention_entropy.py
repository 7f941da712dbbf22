"""Attention entropies before and after, against the oracle, and the claim that perturbation raises them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from small_vit import build, digits, trained
from timm.models.vision_transformer import Block
from torch import nn

import attentiondrop as ad
from attentiondrop import ArgumentError, oracle_draws, reference
from attentiondrop.theory import attention_entropy, entropy_sweep
from attentiondrop.torch import attach
from attentiondrop.torch.attach import Attachment


def row_entropy(weights: np.ndarray) -> np.ndarray:
    return -(weights * np.log(np.clip(weights, 1e-300, None))).sum(-1)


def after(logits: list[float], spec: ad.HardMasking | ad.BlurSmoothing, seed: int = 0) -> tuple[float, float]:
    """Entropy of one row of logits before and after, by the oracle."""
    row = np.array(logits)[None, None, None]
    rng = np.random.default_rng(seed)
    draws = oracle_draws.sample(spec, row.shape, rng)
    q, k = np.ones((1, 1, 1, 1)), row.reshape(1, 1, -1, 1)
    plain = reference.attention(q, k, k, scale=1.0).weights
    perturbed = reference.attention(q, k, k, spec, draws, scale=1.0).weights
    return row_entropy(plain).item(), row_entropy(perturbed).item()


def test_masking_and_blurring_can_lower_the_entropy() -> None:
    """Counterexamples to "both masking and blurring increase H(Q)" """
    # Two keys share the weight; without one of them the other has it all.
    before, now = after([9.0, 9.0, 0.0, 0.0], ad.HardMasking(p=0.5, k=2, fill="-inf"), seed=0)
    assert now < before
    # All logits negative: a dropped one becomes 0, the largest by far.
    before, now = after([-6.0, -6.0, -6.0, -6.0], ad.HardMasking(p=0.3, k=4), seed=1)
    assert now < before
    # One key that nobody wants: blurring drags its neighbours down with it.
    logits = [0.0] * 9
    logits[4] = -10.0
    before, now = after(logits, ad.BlurSmoothing(sigma_min=1.0, sigma_max=1.0, edges="renormalize"))
    assert now < before
    # And the case the paper has in mind: one dominant key.
    before, now = after([8.0, 0.0, 0.0, 0.0], ad.HardMasking(p=0.5, k=1), seed=2)
    assert now > before


def test_noise_lowers_the_entropy_of_uniform_attention() -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    with torch.no_grad():
        model.self_attn.in_proj_weight.zero_()
    found = attention_entropy(model, torch.randn(16, 10, 16), "noise(sigma=1.0)")
    assert found.before == pytest.approx(np.log(10), rel=1e-5)
    assert found.change < -5 * found.standard_error < 0


def test_all_layers_and_heads() -> None:
    images, _ = digits()
    found = attention_entropy(trained(), images[:32], "hard(p=0.5,k=3)")
    assert list(found.sites) == ["blocks.0.attn", "blocks.1.attn"]
    assert all(len(stats.entropy_after) == 2 for stats in found.sites.values())
    heads = [value for stats in found.sites.values() for value in stats.entropy_after]
    assert found.after == pytest.approx(np.mean(heads))
    rates = [rate for stats in found.sites.values() for rate in stats.drop_rates["hard"]]
    assert rates == pytest.approx([0.5] * 4, abs=0.05)
    assert found.to_dict()["change"] == found.change


def test_the_first_layer_is_what_the_weights_say() -> None:
    images, _ = digits()
    model = build()
    seen: list[torch.Tensor] = []
    attention = model.blocks[0].attn
    attention.qkv.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        model.eval()(images[:16])
    q, k, _ = seen[0].reshape(16, 17, 3, 2, 16).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(q @ k.mT / 4, -1).double().numpy()
    found = attention_entropy(build(), images[:16], "hard(p=0.0,k=1)", draws=1)
    stats = found.sites["blocks.0.attn"]
    assert stats.entropy_before == pytest.approx(row_entropy(weights).mean((0, 2)), rel=1e-4)
    assert stats.entropy_after == pytest.approx(stats.entropy_before)


def test_the_attached_spec_is_the_default() -> None:
    images, _ = digits()
    model = trained()  # hard(p=0.1,k=3)
    assert attention_entropy(model, images[:16]).spec == "hard(p=0.1,k=3)"
    assert attention_entropy(model, images[:16]).after == attention_entropy(model, images[:16], "hard(p=0.1,k=3)").after
    several = build()
    attach(several, {"blocks.0.*": "hard", "blocks.1.*": "blur"})
    assert attention_entropy(several, images[:16]).spec.startswith(
        "blocks.0.attn: hard(p=0.1,k=5); blocks.1.attn: blur"
    )
    with pytest.raises(ArgumentError, match=r"spec: expected one, since nothing is attached to the model"):
        attention_entropy(build(), images[:16])
    with pytest.raises(ArgumentError, match=r"inputs: expected at least 8 examples, one for each group, received 4"):
        attention_entropy(model, images[:4])


def test_nothing_is_changed_and_dropout_is_off() -> None:
    images, _ = digits()
    model = build("hard", dropout=0.5)
    modes = [module.training for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    found = attention_entropy(model, images[:16], "hard(p=0.0,k=1)", draws=2)
    assert torch.equal(torch.rand(2), expected) and modes == [module.training for module in model.modules()]
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    without = attention_entropy(build("hard"), images[:16], "hard(p=0.0,k=1)", draws=2)
    assert found.before == pytest.approx(without.before, rel=1e-6)


class FunctionalDropout(nn.Module):
    """With a dropout that is no module, as in the layers of BART."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(nn.functional.dropout(x, 0.5, self.training))
        return found


def with_dropout_of_weights(p: float) -> list[nn.Module]:
    layers = []
    for _ in range(2):
        torch.manual_seed(0)
        layers.append(nn.TransformerEncoderLayer(16, 2, 32, dropout=p, batch_first=True))
    timm_layers = [Block(16, 2, attn_drop=p) for _ in range(2)]
    return [nn.TransformerEncoder(layers[0], 2), nn.Sequential(*timm_layers), FunctionalDropout(*layers)]


@pytest.mark.parametrize("model", with_dropout_of_weights(0.5), ids=["torch", "timm", "functional"])
def test_dropout_is_off_wherever_it_is(model: nn.Module) -> None:
    """Without it nothing is drawn, since masking with p = 0 draws nothing, either."""
    x = torch.randn(16, 10, 16)
    found = [attention_entropy(model, x, "hard(p=0.0,k=1)", draws=1, seed=seed) for seed in (0, 1)]
    assert found[0] == found[1] and len(found[0].sites) == 2
    assert found[0].after == found[0].before
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_sweep() -> None:
    images, _ = digits()
    done: list[int] = []
    specs = [f"hard(p={p},k=3)" for p in (0.0, 0.25, 0.5)]
    found = entropy_sweep(trained(), images[:32], specs, on_spec=done.append)
    assert [entry.spec for entry in found] == [str(ad.parse(spec)) for spec in specs] and done == [1, 2, 3]
    assert found[0].change == pytest.approx(0.0, abs=1e-9)
    assert abs(found[2].change) > abs(found[1].change) > 0
    (other,) = entropy_sweep(trained(), images[:32], specs[2:], draws=1, groups=2, seed=1)
    assert other == attention_entropy(trained(), images[:32], specs[2], draws=1, groups=2, seed=1)


def test_every_row_counts_once_in_groups_of_unequal_size() -> None:
    """17 examples in 8 groups: a group of 3 counts more than one of 2."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    inputs = 4 * torch.randn(17, 10, 16)
    inputs[:3] *= 10
    with torch.no_grad():
        weights = layer.self_attn(inputs, inputs, inputs, average_attn_weights=False)[1]
    found = attention_entropy(layer, inputs, "drophead(p=0.5)")
    assert found.before == pytest.approx(row_entropy(weights.double().numpy()).mean(), rel=1e-5)


def trained_for_a_while(spec: ad.Spec) -> tuple[nn.Module, Attachment, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    attachment = attach(layer, spec, backend="eager")
    inputs = 3 * torch.randn(16, 10, 16)
    for _ in range(5):
        (layer(inputs) * torch.arange(16)).square().sum().backward()
    return layer, attachment, inputs


def test_what_is_attached_is_measured_with_its_present_rates() -> None:
    """Not with the first ones of its learned and adaptive rates, which also do not move meanwhile."""
    layer, attachment, inputs = trained_for_a_while(ad.BlurSmoothing(ad.Learnable(0.1, high=2.0), sampling="sample"))
    for raw in attachment.parameters():
        raw.data.fill_(4.0)
    (rate,) = attachment.rates()["self_attn"].values()
    (stats,) = attention_entropy(layer, inputs, draws=64).sites.values()
    assert stats.sigmas["blur"] == pytest.approx([rate / 2] * 4, rel=0.1)

    target = ad.EntropyTarget(0.99, high=0.4, start=0.1, speed=0.1)
    layer, attachment, inputs = trained_for_a_while(ad.DropKey(target))
    (rate,) = attachment.rates()["self_attn"].values()
    assert 0.12 < rate < 0.35
    (stats,) = attention_entropy(layer, inputs, draws=64).sites.values()
    assert stats.drop_rates["dropkey"] == pytest.approx([rate] * 4, abs=0.01)
    assert attachment.rates()["self_attn"] == {"dropkey.p": rate}

    layer, attachment, inputs = trained_for_a_while(ad.HeadMask(1, choice="important"))
    state = attachment.state_dict()
    attachment.load_state_dict({**state, "importance": {name: torch.eye(4)[2] for name in state["importance"]}})
    (stats,) = attention_entropy(layer, inputs).sites.values()
    assert stats.drop_rates["headmask"] == [0.0, 0.0, 1.0, 0.0]


def test_attachments_to_parts_of_a_model() -> None:
    layers = [nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(*layers)
    for layer, sigma in zip(layers, (0.0, 3.0), strict=True):
        attach(layer, ad.GaussianNoise(sigma))
    found = attention_entropy(model, torch.randn(16, 10, 16))
    assert {name: stats.sigmas["noise"][0] for name, stats in found.sites.items()} == {
        "0.self_attn": 0.0,
        "1.self_attn": 3.0,
    }
    assert found.spec == "0.self_attn: noise(sigma=0.0); 1.self_attn: noise(sigma=3.0)"
