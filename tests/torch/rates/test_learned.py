"""`Learnable`: gradients that are right, or at least point the right way, and parameters that are the attachment's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peaked import Peaked
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop.torch import attach
from attentiondrop.torch.functional import Options, perturbed_attention
from attentiondrop.torch.rates.learned import LearnedRate
from attentiondrop.torch.rates.scheduled import driven_at


def site(spec: ad.Spec) -> Any:
    return driven_at(spec, 0.0, 0, 1, nn.Linear(1, 1, dtype=torch.float64), None)


def loss_of(spec: ad.Spec, is_causal: bool, backend: Any) -> tuple[Any, Any]:
    drop = site(spec)
    q, k, v = torch.randn(3, 2, 3, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (fields,) = drop.values.values()
    (rate,) = fields.values()

    def loss(raw: Tensor) -> Tensor:
        torch.manual_seed(1)
        # The rate as `LearnedRate` computes it, from a tensor that `gradcheck` varies.
        value = rate.low + (rate.high - rate.low) * raw.sigmoid()
        driven = drop._replace(values={number: dict.fromkeys(fields, value) for number in drop.values})
        output = perturbed_attention(q, k, v, driven, Options(is_causal=is_causal), backend=backend).output
        return (output * torch.arange(4.0, dtype=torch.float64)).square().sum()

    return loss, rate.raw.detach().clone().requires_grad_()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("backend", ["eager", "auto"])
@pytest.mark.parametrize(
    "spec",
    [
        ad.BlurSmoothing(ad.Learnable(0.8, high=2.0)),
        ad.BlurSmoothing(ad.Learnable(0.8, high=2.0, heads=3), sampling="sample", edges="renormalize"),
        ad.GaussianNoise(ad.Learnable(0.3, high=2.0)),
    ],
    ids=str,
)
def test_the_gradient_of_sigma_is_exact(spec: ad.Spec, backend: str, is_causal: bool) -> None:
    loss, raw = loss_of(spec, is_causal, backend)
    assert torch.autograd.gradcheck(loss, raw, atol=1e-6)


@pytest.mark.parametrize(
    "spec", [ad.HardMasking(p=ad.Learnable(0.25), k=3), ad.AttentionDropout(ad.Learnable(0.25))], ids=str
)
def test_decisions_stay_hard(spec: ad.Spec) -> None:
    """The output is that of a plain rate; p has a gradient, queries have theirs."""
    q, k, v = torch.randn(3, 2, 3, 7, 4, dtype=torch.float64)
    q.requires_grad_()
    outputs, gradients = [], []
    for drop in (site(spec), spec.at(0.0)):
        torch.manual_seed(1)
        output = perturbed_attention(q, k, v, drop, Options(is_causal=True)).output
        (gradient,) = torch.autograd.grad(output.square().sum(), q)
        outputs.append(output)
        gradients.append(gradient)
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*gradients)


class Toy(nn.Module):
    """One attention whose first key is a distraction that it cannot help looking at."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True).requires_grad_(False)
        self.attention.in_proj_weight.copy_(torch.eye(4).repeat(3, 1))
        self.attention.out_proj.weight.copy_(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return output


@pytest.mark.parametrize("wanted", ["the mean", "the largest"])
@pytest.mark.parametrize(
    "spec, low, high",
    [
        (ad.HardMasking(p=ad.Learnable(0.25, high=0.5), k=1), 0.15, 0.35),
        (ad.BlurSmoothing(ad.Learnable(1.0, high=2.0)), 0.8, 1.2),
    ],
    ids=str,
)
def test_rates_move_where_the_loss_is_lower(spec: ad.Spec, low: float, high: float, wanted: str) -> None:
    """A loss that rewards attending to the mean asks for more perturbation, one that rewards the largest for less."""
    torch.manual_seed(0)
    model = Toy()
    attachment = attach(model, spec)
    optimiser = torch.optim.Adam(attachment.parameters(), lr=0.1)
    for _ in range(60):
        x = 2.5 * torch.randn(32, 6, 4)
        target = x.mean(1, keepdim=True) if wanted == "the mean" else (2.0 * x @ x.mT).softmax(-1) @ x
        loss = (model(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    (rate,) = attachment.rates()["attention"].values()
    assert rate > high if wanted == "the mean" else rate < low


def test_parameters_belong_to_the_attachment() -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    names = [name for name, _ in model.named_parameters()]
    keys = list(model.state_dict())
    # With a lower end: a narrow blur has a gradient of exactly 0.
    attachment = attach(model, ad.BlurSmoothing(ad.Learnable(0.5, low=0.3, high=2.0, heads=2), sigma_min=0.3))
    assert [name for name, _ in model.named_parameters()] == names and list(model.state_dict()) == keys
    (raw,) = attachment.parameters()
    assert raw.shape == (2,)
    for _ in range(8):  # a narrow blur, as one draw may give, is the identity up to rounding, and has no gradient
        # The sum of what a layer norm returns is constant, and has no gradient but rounding.
        (model(torch.randn(2, 5, 16)) * torch.randn(16)).sum().backward()
    assert raw.grad is not None and raw.grad.abs().sum() > 0
    with torch.no_grad():
        raw += 1.0
    attachment.set_progress(0.7)
    again = attach(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), attachment.sites[0].spec)
    again.load_state_dict(attachment.state_dict())
    assert again.rates() == attachment.rates() != {}
    with pytest.raises(ad.AttentionDropError, match="state: expected the state of an attachment with the same specs"):
        again.load_state_dict({"progress": 0.0, "adaptive": {}, "learned": {}})
    with pytest.raises(ad.AttentionDropError, match="state: expected the state of an attachment with the same specs"):
        again.load_state_dict({**attachment.state_dict(), "learned": {"self_attn.0.sigma_max": torch.zeros(3)}})
    for state, received in (({"model": {}}, r"\['model'\]"), (None, "'NoneType'")):
        with pytest.raises(ad.AttentionDropError, match=rf"state: expected what .* returned, received {received}"):
            again.load_state_dict(state)
    assert again.rates() == attachment.rates() and again.progress == 0.7


@pytest.mark.no_cover
def test_compiled() -> None:
    torch._dynamo.reset()
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    attachment = attach(model, ad.BlurSmoothing(ad.Learnable(0.5, high=2.0)))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    gradients = []
    x = torch.randn(2, 5, 16)
    for function in (model, compiled):
        torch.manual_seed(1)
        gradients.append(torch.autograd.grad(function(x).square().sum(), list(attachment.parameters())))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ad.Learnable(0.5), "init: expected a number between low=0.0 and high=0.5, received 0.5"),
        (lambda: ad.DropKey(ad.Learnable(0.1)), r"p: expected a rate that is not learned, in dropkey\(...\)"),
        (lambda: ad.DropHead(ad.Learnable(0.1)), r"p: expected a rate that is not learned, in drophead\(...\)"),
        (
            lambda: ad.HardMasking(ad.Learnable(0.1), fill="-inf"),
            'p: expected a rate that is not learned, for fill="-inf"',
        ),
        (lambda: ad.HardMasking(ad.Learnable(0.1), heads="stratified"), "p: .* not learned, .* or stratified heads"),
        (lambda: ad.Learnable(0.1, heads=0), "heads: expected a number >= 1, received 0"),
    ],
)
def test_bad_rates(make: Any, message: str) -> None:
    with pytest.raises(ad.AttentionDropError, match=message):
        make()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_rate_is_at_least_float32(dtype: torch.dtype) -> None:
    """In 16 bits, steps as small as those of a rate are lost."""
    rate = LearnedRate(ad.Learnable(0.1), torch.empty(0, dtype=dtype))
    assert rate.raw.dtype == torch.promote_types(dtype, torch.float32)


def test_fused_says_why_not() -> None:
    q = torch.randn(1, 2, 5, 4, dtype=torch.float64)
    with pytest.raises(ad.BackendError, match="the gradient of a rate that is learned needs the logits"):
        perturbed_attention(q, q, q, site(ad.GaussianNoise(ad.Learnable(0.1))), Options(), backend="fused")


def test_texts() -> None:
    for spec in (ad.BlurSmoothing(ad.Learnable(0.7, high=2.0, heads=4)), ad.GaussianNoise(ad.Learnable(0.1))):
        assert ad.parse(str(spec)) == spec and ad.from_dict(spec.to_dict()) == spec


def test_a_rate_begins_at_its_first_value_between_other_limits_than_zero() -> None:
    attachment = attach(Peaked(), ad.GaussianNoise(ad.Learnable(0.3, low=0.2, high=0.5)))
    assert attachment.rates() == {"attention": {"noise.sigma": pytest.approx(0.3)}}
