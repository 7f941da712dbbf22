"""Certificates of models: independent draws, nothing of the model changed, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from small_vit import build, digits, trained
from torch import Tensor, nn

from attentiondrop import ArgumentError
from attentiondrop.errors import AttentionDropError, ShapeError
from attentiondrop.theory import certificate_from_losses, risk_certificate
from attentiondrop.theory.observation import observe
from attentiondrop.theory.stochastic import RandomisedPredictor, shares_draws

SPECS = [
    "hard(p=0.5,k=3)",
    "blur(sigma_max=2.0)",
    "blur(sigma_max=2.0,sampling=head)",
    "oneof(hard(p=0.5),dropkey(p=0.5))",
    "noise(sigma=1.0)",
    "drophead(p=0.4)",
    "attndropout(p=0.4)",
    "blur(sigma_max=2.0)+hard(p=0.5)",
]


def held_out(count: int = 400) -> list[tuple[Tensor, Tensor]]:
    images, labels = digits()
    return list(zip(images[600 : 600 + count].split(150), labels[600 : 600 + count].split(150), strict=True))


@pytest.mark.parametrize("spec", SPECS)
def test_no_two_examples_share_a_draw(spec: str) -> None:
    """Copies of one image in one call get different logits, also where a call draws one sigma, or one choice."""
    predictor = RandomisedPredictor(build(spec))
    copies = digits()[0][:1].expand(12, -1, -1, -1)
    logits = predictor(copies)
    assert predictor.vectorised
    assert len(torch.unique((logits * 1e4).round(), dim=0)) >= 5  # two heads have few outcomes
    again = predictor(copies)
    assert not torch.equal(logits, again)


@pytest.mark.parametrize("spec", ["hard(p=0.5,k=3)", "blur(sigma_max=2.0)"])
def test_drawing_alone_and_in_a_batch_has_the_same_distribution(spec: str) -> None:
    """The same means over 300 draws as the model's own calls; 10 comparisons, false-alarm rate 1e-6 each."""
    model = build(spec).train()
    image = digits()[0][:1]
    with torch.no_grad():
        own = torch.cat([model(image) for _ in range(300)]).double().numpy()
    vectorised = RandomisedPredictor(model)(image.expand(300, -1, -1, -1)).double().numpy()
    assert scipy.stats.ttest_ind(own, vectorised, equal_var=False).pvalue.min() > 1e-6
    assert vectorised.std(0) == pytest.approx(own.std(0), rel=0.3)


def test_a_model_that_resists_vectorising_runs_one_by_one() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build("blur(sigma_max=2.0)")

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) if x.sum().item() > -1e9 else x

    predictor = RandomisedPredictor(Stubborn())
    logits = predictor(digits()[0][:1].expand(5, -1, -1, -1))
    assert not predictor.vectorised and len(torch.unique(logits, dim=0)) == 5


def test_the_report() -> None:
    report = risk_certificate(trained(), held_out(), draws=4)
    names = [entry.name for entry in report.certificates]
    assert names[:2] == ["stochastic", "deterministic"] and len(set(names)) == 5
    for entry in report.certificates:
        assert 0 < entry.estimate < entry.value < 1 and entry.n == 400 and entry.assumptions
    # The direct bound beats every detour.
    assert report.deterministic.value < min(entry.value for entry in report.certificates[2:])
    images, labels = digits()
    with torch.no_grad():
        errors = (trained()(images[600:1000]).argmax(-1) != labels[600:1000]).double().mean()
    assert report.deterministic.estimate == pytest.approx(errors.item())
    assert report.to_dict()["certificates"][0]["name"] == "stochastic"


def test_without_randomness_views_agree() -> None:
    model = build(None)
    report = risk_certificate(model, held_out(150), draws=2)
    seen = observe(model, held_out(150), draws=2)
    assert seen.apart.max() == seen.pairs.max() == 0.0 and seen.pinsker.max() < 1e-3
    assert report.stochastic.estimate == report.deterministic.estimate


def test_an_observation_is_what_its_fields_say() -> None:
    """Of a model that adds known numbers in training: nothing is random, so that every field is known."""
    plain = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.5, 0.0], [0.0, 0.0, 1.0]])
    shift = torch.tensor([-1.0, 0.0, 2.0])

    class Shifted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + shift if self.training else x

    model, labels, done = Shifted().train(), torch.tensor([0, 2, 2]), []
    batches = [(plain[:2], labels[:2]), (plain[2:], labels[2:])]
    seen = observe(model, batches, draws=2, on_batch=done.append)
    assert done == [2, 3] and model.training
    assert seen.deterministic_zero_one.tolist() == [0, 1, 0] and seen.stochastic_zero_one.tolist() == [1, 0, 0]
    assert seen.apart.tolist() == [1, 1, 0] and seen.pairs.tolist() == [0, 0, 0]
    p, q = (torch.softmax(logits.double(), -1) for logits in (plain, plain + shift))
    assert seen.stochastic_softmax == pytest.approx((1 - q[range(3), labels]).numpy())
    kl = (p * (p / q).log()).sum(-1)
    assert seen.pinsker == pytest.approx((kl / 2).sqrt().clamp_max(1).numpy())


def test_it_is_what_the_losses_say() -> None:
    seen = observe(trained(), held_out(), draws=3, seed=5)
    report = risk_certificate(trained(), held_out(), draws=3, seed=5)
    assert report.stochastic.estimate == seen.stochastic.mean()
    table = np.tile(seen.stochastic, (2, 1))
    assert report.stochastic.value == certificate_from_losses(table).value
    other = risk_certificate(trained(), held_out(), draws=3, seed=6)
    assert other.stochastic.estimate != report.stochastic.estimate


def test_nothing_is_changed() -> None:
    model = trained()
    before = copy.deepcopy(model.state_dict())
    model.blocks[0].train()
    modes = [module.training for module in model.modules()]
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    risk_certificate(model, held_out(150), draws=2)
    assert torch.equal(torch.rand(3), expected)
    assert [module.training for module in model.modules()] == modes
    model.eval()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_suspects_count_as_errors() -> None:
    suspects = np.zeros(400, dtype=bool)
    plain = risk_certificate(trained(), held_out(), draws=2, suspects=suspects)
    suspects[:40] = True
    charged = risk_certificate(trained(), held_out(), draws=2, suspects=suspects)
    for before, after in zip(plain.certificates, charged.certificates, strict=True):
        assert after.value > before.value
    assert "40 of 400 held-out examples" in charged.notes[-1]
    # Views agree on what the model has seen, so suspects also count as examples on which they differ.
    everything = risk_certificate(trained(), held_out(150), draws=2, suspects=np.ones(150, dtype=bool))
    assert [entry.value for entry in everything.certificates] == [1.0] * 5
    seen = observe(trained(), held_out(), draws=2)
    for entry, loss, extra in zip(
        charged.certificates[2:],
        (seen.stochastic_zero_one, seen.stochastic_zero_one, seen.stochastic_softmax),
        (seen.apart, seen.pairs, seen.pinsker),
        strict=True,
    ):
        assert entry.estimate == pytest.approx(0.2 + (loss[40:].sum() + extra[40:].sum()) / 400)
    with pytest.raises(ShapeError, match=r"suspects: expected \[400\], one entry per example, received \[3\]"):
        risk_certificate(trained(), held_out(), draws=2, suspects=np.zeros(3, dtype=bool))


def test_other_losses() -> None:
    soft = risk_certificate(trained(), held_out(150), draws=2, loss="softmax")
    assert soft.deterministic.how.startswith("kl inverse")

    def half(logits: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * (logits.argmax(-1) != labels).double()

    found = risk_certificate(trained(), held_out(150), draws=2, loss=half)
    whole = risk_certificate(trained(), held_out(150), draws=2)
    assert found.stochastic.estimate == pytest.approx(whole.stochastic.estimate / 2)
    assert "half loss" in found.stochastic.predictor


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"draws": 1}, r"draws: expected a number >= 2, received 1"),
        ({"delta": 0}, r"delta: expected a number between 0 and 1, both excluded"),
        (
            {"loss": "hinge"},
            r"loss: expected 'zero-one', 'softmax' or a function of logits and labels, received 'hinge'",
        ),
        (
            {"loss": lambda logits, labels: nn.functional.cross_entropy(logits, labels, reduction="none")},
            r"loss: expected values in \[0, 1\], which every bound here needs, received",
        ),
        (
            {"loss": lambda logits, labels: logits},
            r"loss: expected a function that gives one value per example, \[150\]",
        ),
    ],
)
def test_what_would_make_the_number_a_lie_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        risk_certificate(trained(), held_out(150), **({"draws": 2} | changes))


@pytest.mark.parametrize(
    "labels, message",
    [
        (torch.full((8,), 10), r"labels: expected classes from 0 to 9, received \[10, 10\]"),
        (torch.full((8,), -100), r"labels: expected classes from 0 to 9, received \[-100, -100\]"),
        (torch.zeros(8), r"labels: expected a tensor of integers, received 'torch.float32'"),
        ([0] * 8, r"labels: expected a tensor of integers, received 'list'"),
        (torch.zeros(5, dtype=torch.long), r"received \[8, 10\] and \[5\]"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels: Any, message: str) -> None:
    with pytest.raises(AttentionDropError, match=message):
        risk_certificate(trained(), [(digits()[0][:8], labels)])


def test_any_integers_are_labels() -> None:
    images, labels = digits()
    wide, narrow = (risk_certificate(trained(), [(images[:8], each)]) for each in (labels[:8], labels[:8].byte()))
    assert wide == narrow


def test_models_without_a_prediction_for_each_example_are_refused() -> None:
    normed = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    with pytest.raises(ArgumentError, match=r"does not depend on the rest of the batch.*batch normalisation.*\(1\)"):
        risk_certificate(normed, held_out(150))
    with pytest.raises(
        ArgumentError, match=r"model: expected one that gives \[150, classes\].*received \[150, 1, 8, 8\]"
    ):
        risk_certificate(nn.Identity(), held_out(150))
    with pytest.raises(ArgumentError, match=r"batches: expected at least one, received none"):
        risk_certificate(trained(), [])


def test_who_shares_draws() -> None:
    assert shares_draws(build("blur(sigma_max=1.0)")) and shares_draws(build("oneof(hard,noise)+dropkey"))
    assert not shares_draws(build("blur(sigma_max=1.0,sampling=sample)+hard"))
    assert not shares_draws(build("blur(sigma_min=1.0,sigma_max=1.0)")) and not shares_draws(build(None, dropout=0.1))


@pytest.mark.slow
def test_certificates_of_a_model_hold_in_1000_simulated_data_sets() -> None:
    """A model with hard masking on data whose distribution is the 1,197 digits it was not trained on: the risks are
    known up to the draws. 1,000 samples of 80; false-alarm rate 1e-6 for each certificate."""
    most = int(scipy.stats.binom.isf(1e-6, 1000, 0.05))
    images, labels = digits()
    images, labels = images[600:], labels[600:]
    # True risks: the deterministic one exactly, the randomised one from 200 draws of each image (standard error 1e-4).
    predictor = RandomisedPredictor(trained())
    drawn = torch.stack([predictor(images).argmax(-1) for _ in range(200)])
    with torch.no_grad():
        fixed = trained()(images).argmax(-1)
    truth = {
        "stochastic": (drawn != labels).double().mean().item(),
        "deterministic": (fixed != labels).double().mean().item(),
        "deterministic, through disagreement": (fixed != labels).double().mean().item(),
        "majority vote, through views": (drawn.mode(0).values != labels).double().mean().item(),
    }
    wrong = dict.fromkeys(truth, 0)
    generator = torch.Generator().manual_seed(0)
    for repeat in range(1000):
        chosen = torch.randint(len(labels), (80,), generator=generator)
        report = risk_certificate(trained(), [(images[chosen], labels[chosen])], draws=2, seed=repeat)
        for entry in report.certificates:
            if entry.name in truth:
                wrong[entry.name] += entry.value < truth[entry.name]
    assert max(wrong.values()) <= most, wrong
    print(wrong, truth)


def test_a_loss_that_happens_to_be_0_or_1_gets_no_binomial_bound() -> None:
    """Which bound it gets must not depend on the data: both together would fail more often than delta."""

    def lucky(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (logits.argmax(-1) != labels).to(logits.dtype)

    same, own = (risk_certificate(trained(), held_out(150), draws=2, loss=loss) for loss in ("zero-one", lucky))
    assert same.deterministic.how.startswith("inverse of the binomial tail")
    assert own.deterministic.how.startswith("kl inverse")
    assert own.deterministic.estimate == same.deterministic.estimate
    assert own.deterministic.value > same.deterministic.value
