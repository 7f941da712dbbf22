"""Gaussian weights over queries and keys, and the certificate from a data-dependent prior."""

from __future__ import annotations

import json
import math

import pytest
import scipy.stats
import torch
from small_vit import build, digits
from torch import nn

from attentiondrop import ArgumentError
from attentiondrop.errors import ShapeError
from attentiondrop.theory import (
    PosteriorCertificate,
    PosteriorSettings,
    gaussian_kl,
    kl_inverse,
    pac_bayes_bound,
    posterior_certificate,
)
from attentiondrop.theory.fitting import Schedule
from attentiondrop.theory.gaussian_weights import GaussianWeights, query_key_projections
from attentiondrop.theory.stochastic import RandomisedPredictor

QUICK = PosteriorSettings(
    prior=Schedule(epochs=5, learning_rate=3e-3), posterior=Schedule(epochs=1, weight_decay=0.0), draws=2
)


@pytest.fixture(scope="module")
def found() -> PosteriorCertificate:
    images, labels = digits()
    seen: list[tuple[str, float]] = []
    result = posterior_certificate(
        build("hard(p=0.1,k=3)"),
        images[:800],
        labels[:800],
        held_out=(images[800:1200], labels[800:1200]),
        settings=QUICK,
        on_progress=lambda label, share: seen.append((label, share)),
    )
    shares = [share for _, share in seen]
    assert shares == sorted(shares) and shares[-1] == 1.0
    return result


def test_the_certificate(found: PosteriorCertificate) -> None:
    main = found.certificate
    assert main.n == 400 and found.prior_examples == 400 and found.weights == 2 * 2 * 32 * 32
    # Delta is shared: 4/5 for the bound, 1/5 for the draws.
    risk = kl_inverse(main.estimate, math.log(1 / 0.01) / (400 * 2))
    assert found.bound.empirical_risk == pytest.approx(risk)
    assert main.value == pac_bayes_bound(risk, found.bound.kl, 400, delta=0.04).value
    assert found.bound.kl >= 0 and not main.vacuous and found.prior_value < 1
    held_out, mean = found.held_out, found.deterministic
    assert held_out is not None and mean is not None and found.deterministic_error is not None
    assert main.value > held_out.estimate and mean.value > found.deterministic_error
    assert mean.value > main.value
    # The means are the same model without noise, so their error is close to that of the draws.
    assert abs(found.deterministic_error - held_out.estimate) <= mean.estimate - main.estimate + 1e-9
    plain = json.loads(json.dumps(found.to_dict()))
    assert len(plain["certificates"]) == 3 and plain["bound"]["kind"] == "seeger"


def test_it_is_repeatable_and_does_without_held_out_examples(found: PosteriorCertificate) -> None:
    images, labels = digits()
    again = posterior_certificate(build("hard(p=0.1,k=3)"), images[:800], labels[:800], settings=QUICK)
    assert again.certificate.value == pytest.approx(found.certificate.value, abs=0.02)
    assert again.certificates == (again.certificate,)


def test_kl_is_the_closed_form() -> None:
    weights = GaussianWeights(query_key_projections(build()), prior_scale=0.2)
    assert weights.kl().item() == pytest.approx(0.0, abs=1e-9)
    with torch.no_grad():
        for shift, log_std in zip(weights.shifts, weights.log_stds, strict=True):
            shift.normal_(std=0.05)
            log_std.add_(0.1 * torch.randn_like(log_std))
    expected = sum(
        gaussian_kl(shift.detach().numpy(), log_std.detach().exp().numpy(), 0.0, 0.2 / math.sqrt(32))
        for shift, log_std in zip(weights.shifts, weights.log_stds, strict=True)
    )
    assert weights.kl().item() == pytest.approx(expected, rel=1e-5)


class OneLayer(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.q = nn.Linear(inputs, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q(x)


@pytest.mark.parametrize("tokens, inputs", [(3, 8), (8, 3)])
def test_weights_of_an_example_are_those_of_a_drawn_matrix(tokens: int, inputs: int) -> None:
    """Covariances over tokens and outputs, from 20,000 examples, as an explicit weight matrix gives them (5 sigma)."""
    model = OneLayer(inputs)
    weights = GaussianWeights(query_key_projections(model), prior_scale=1.0)
    with torch.no_grad():
        weights.shifts[0].normal_()
        weights.log_stds[0].copy_(torch.tensor([[-1.0], [-0.5], [0.0], [0.3], [0.5]]))
    x = torch.randn(tokens, inputs)
    count = 20_000
    with torch.no_grad(), weights.on(model, "example"):
        drawn = model(x.expand(count, -1, -1))
    with torch.no_grad(), weights.on(model, None):
        mean = model(x[None])[0]
    centred = (drawn - mean).double()
    covariance = torch.einsum("nto,nsp->tsop", centred, centred) / count
    std = weights.log_stds[0].detach().exp().squeeze().double()
    expected = torch.einsum("ts,op->tsop", (x @ x.mT).double(), torch.diag(std**2))
    size = torch.einsum("t,s,o,p->tsop", *[(x * x).sum(-1).sqrt().double()] * 2, std, std)
    assert ((covariance - expected).abs() <= 5 * math.sqrt(2 / count) * size).all()
    direct = x @ (model.q.weight + weights.shifts[0]).detach().mT + model.q.bias.detach()
    assert torch.allclose(mean, direct, atol=1e-5)


def test_examples_have_weights_of_their_own_in_every_mode() -> None:
    model = build()
    weights = GaussianWeights(query_key_projections(model), prior_scale=2.0)
    image = digits()[0][:1].expand(6, -1, -1, -1)
    predictor = RandomisedPredictor(model)
    with weights.on(predictor.model, "example"):
        assert len(torch.unique(predictor(image), dim=0)) == 6 and predictor.vectorised
    plain = model.eval()(image)
    with torch.no_grad(), weights.on(model, "call"):
        shared = model(image)
        assert torch.allclose(shared, shared[:1].expand_as(shared), atol=1e-5)
        assert not torch.allclose(shared, plain, atol=1e-3)
    with torch.no_grad(), weights.on(model, None):
        assert torch.allclose(model(image), plain, atol=1e-5)
    assert torch.equal(model(image), plain)  # no hook is left


def test_which_layers_are_found() -> None:
    assert [entry[0::2] for entry in query_key_projections(build())] == [
        ("blocks.0.attn.qkv", 64),
        ("blocks.1.attn.qkv", 64),
    ]
    named = nn.ModuleDict({"q_proj": nn.Linear(4, 6), "k_proj": nn.Linear(4, 2), "v_proj": nn.Linear(4, 6)})
    assert [(entry.name, entry.rows) for entry in query_key_projections(named)] == [("q_proj", 6), ("k_proj", 2)]
    with pytest.raises(
        ArgumentError, match=r"model: expected linear layers called qkv, q, .* received MultiheadAttention"
    ):
        query_key_projections(nn.MultiheadAttention(8, 2))


def test_attention_over_parts_of_examples_is_refused() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.q(x.reshape(-1, 2, 4)).reshape(len(x), -1)

    model = Windows()
    weights = GaussianWeights(query_key_projections(model), 0.1)
    with pytest.raises(ArgumentError, match=r"attention over whole examples.*see 6 sequences for 3 examples"):
        with weights.on(model, "example"):
            model(torch.randn(3, 4, 4))
    assert not model.q._forward_hooks


class Refusing(nn.Module):
    """A model that fails if it is trained, with a query projection that it uses `uses` times."""

    def __init__(self, uses: int, norm: nn.Module) -> None:
        super().__init__()
        self.q, self.norm, self.uses = nn.Linear(64, 64), norm, uses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not torch.is_grad_enabled(), "it was trained"
        for _ in range(self.uses):
            x = self.q(x.flatten(1))
        return self.norm(x)


@pytest.mark.parametrize(
    "uses, norm, message",
    [
        (2, nn.Identity(), "uses each query and key projection once in a pass, received one that uses q again"),
        (1, nn.BatchNorm1d(64), "does not depend on the rest of the batch"),
        (1, nn.Unflatten(1, (8, 8)), r"gives \[1, classes\] for 1 examples, received \[1, 8, 8\]"),
    ],
)
def test_a_model_that_cannot_be_certified_is_refused_before_it_is_trained(
    uses: int, norm: nn.Module, message: str
) -> None:
    """A projection that is used twice would get two sets of weights, and the KL would be that of one."""
    with pytest.raises(ArgumentError, match=message):
        posterior_certificate(Refusing(uses, norm), *(part[:40] for part in digits()))


def test_held_out_examples_that_occur_in_training_count_as_errors() -> None:
    images, labels = digits()
    quick = PosteriorSettings(prior=Schedule(epochs=8, learning_rate=3e-3), posterior=Schedule(epochs=1), draws=2)
    values = []
    for count in (0, 30):
        found = posterior_certificate(
            build("hard(p=0.1,k=3)"),
            images[:400],
            labels[:400],
            held_out=(images[400:500], labels[400:500]),
            suspects=torch.arange(100).numpy() < count,
            settings=quick,
        )
        assert found.held_out is not None and found.deterministic is not None
        values.append((found.held_out.estimate, found.deterministic.estimate - found.certificate.estimate))
    (errors, apart), (more_errors, more_apart) = values
    assert errors + 0.1 < more_errors and apart + 0.1 < more_apart


@pytest.mark.parametrize(
    "shape, labels, suspects, message",
    [
        ([6, 1, 8, 8], [5], None, r"held_out: expected labels \[6\], one for each input, received \[5\]"),
        ([6, 1, 8, 8], [6, 1], None, r"held_out: expected labels \[6\], one for each input, received \[6, 1\]"),
        (
            [6, 8, 8],
            [6],
            None,
            r"held_out: expected inputs of the shape \[examples, 1, 8, 8\], .* received \[6, 8, 8\]",
        ),
        ([0, 1, 8, 8], [0], None, r"held_out: expected inputs of the shape .* received \[0, 1, 8, 8\]"),
        ([6, 1, 8, 8], [6], 5, r"suspects: expected \[6\], one entry per example, received \[5\]"),
    ],
)
def test_held_out_examples_are_checked_before_training(
    shape: list[int], labels: list[int], suspects: int | None, message: str
) -> None:
    held_out = (torch.zeros(shape), torch.zeros(labels, dtype=torch.long))
    marks = None if suspects is None else torch.zeros(suspects).bool().numpy()
    with pytest.raises(ShapeError, match=message):
        posterior_certificate(
            Refusing(1, nn.Identity()), *(part[:40] for part in digits()), held_out=held_out, suspects=marks
        )


def test_bad_arguments() -> None:
    images, labels = digits()
    with pytest.raises(ArgumentError, match=r"prior_scale: expected a number > 0, received 0"):
        PosteriorSettings(prior_scale=0)
    with pytest.raises(ArgumentError, match=r"draws: expected a number >= 2, received 1"):
        PosteriorSettings(draws=1)
    with pytest.raises(
        ArgumentError, match=r"prior_share: expected a number between 0 and 1, both excluded, received 1"
    ):
        PosteriorSettings(prior_share=1)
    with pytest.raises(ShapeError, match=r"labels: expected \[5\], one for each input, received \[4\]"):
        posterior_certificate(build(), images[:5], labels[:4])
    with pytest.raises(ShapeError, match=r"labels: expected \[5\], one for each input, received \[5, 1\]"):
        posterior_certificate(build(), images[:5], labels[:5, None])
    with pytest.raises(ArgumentError, match=r"seed: expected a number >= 0, received -1"):
        PosteriorSettings(seed=-1)
    with pytest.raises(ArgumentError, match=r"prior_share: expected one that splits 1 examples into two parts"):
        posterior_certificate(build(), images[:1], labels[:1])


def test_most_draws_of_a_normal_are_where_they_belong() -> None:
    """The hook's noise is normal, not only of the right variance: Kolmogorov and Smirnov, false-alarm rate 1e-6."""
    model = OneLayer(4)
    weights = GaussianWeights(query_key_projections(model), prior_scale=2.0)
    x = torch.randn(1, 4)
    with torch.no_grad():
        plain = model(x)
        with weights.on(model, "example"):
            drawn = (model(x.expand(5000, 1, 4)) - plain)[:, 0, 0].double().numpy()
    scale = (2.0 / math.sqrt(4)) * x.norm().item()
    assert scipy.stats.kstest(drawn / scale, "norm").pvalue > 1e-6
