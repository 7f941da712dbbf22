"""Projected gradient descent: closed forms for linear models, the ball, the bounds, what it leaves alone."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from attentiondrop import AttentionDropError
from attentiondrop.evaluation import pgd_attack, robust_accuracy
from attentiondrop.torch import attach

WIDE = (-10.0, 10.0)


def linear(classes: int = 2, pixels: int = 12) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes))


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 5))


def pictures(count: int = 16) -> tuple[Tensor, Tensor]:
    return torch.rand(count, 3, 4, 4), torch.randint(5, (count,))


def margins(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """By how much the right one of two classes leads."""
    logits = model(images)
    return logits.gather(1, labels[:, None])[:, 0] - logits.gather(1, 1 - labels[:, None])[:, 0]


@pytest.mark.parametrize("loss", ["ce", "margin"])
@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_reaches_the_optimum_of_a_linear_model(norm: str, dual: int, loss: str) -> None:
    """The margin of w x + b falls by epsilon times the dual norm of w, the difference of the two rows, and no further."""
    model = linear().double()
    images, labels = torch.rand(32, 3, 2, 2, dtype=torch.float64), torch.randint(2, (32,))
    weights = model[1].weight
    fall = 0.3 * torch.linalg.vector_norm(weights[0] - weights[1], ord=dual)
    for step_size, precision in ((0.3, 1e-9), (None, 1e-9 if norm == "linf" else 0.05)):
        # Small steps in l2 leave some of the random start: 2.5 epsilon is not far enough to turn all the way.
        worse = pgd_attack(
            model, images, labels, epsilon=0.3, step_size=step_size, steps=40, norm=norm, loss=loss, bounds=WIDE
        )
        with torch.no_grad():
            found = margins(model, images, labels) - margins(model, worse, labels)
        assert torch.allclose(found, fall.expand(32), rtol=precision) and (found <= fall * (1 + 1e-9)).all()


def test_reaches_the_optimum_inside_the_bounds() -> None:
    model = linear()
    images, labels = torch.rand(32, 3, 2, 2), torch.randint(2, (32,))
    weights = (model[1].weight[0] - model[1].weight[1]).view(3, 2, 2)
    towards = torch.where(labels == 0, -1.0, 1.0)[:, None, None, None] * weights.sign()
    best = (images + 0.4 * towards).clamp(0, 1)
    worse = pgd_attack(model, images, labels, epsilon=0.4, steps=40)
    assert torch.allclose(worse, best, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.001, 8 / 255, 0.5, 3.0])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_stays_in_the_ball_and_the_bounds(norm: str, epsilon: float) -> None:
    images, labels = pictures()
    images[:4] = torch.randint(2, (4, 3, 4, 4)).float()
    worse = pgd_attack(small_net(), images, labels, epsilon=epsilon, norm=norm, restarts=2, step_size=epsilon)
    move = (worse - images).flatten(1)
    length = move.abs().amax(1) if norm == "linf" else move.norm(dim=1)
    assert length.max() <= epsilon * (1 + 1e-5) + 1e-6
    assert worse.min() >= 0 and worse.max() <= 1
    assert worse.dtype == images.dtype and not worse.requires_grad
    assert length.max() > epsilon / 2 or epsilon > 1


def test_other_bounds() -> None:
    images, labels = pictures()
    worse = pgd_attack(small_net(), images * 255, labels, epsilon=8.0, bounds=(0.0, 255.0))
    assert (worse - images * 255).abs().max() == pytest.approx(8.0, abs=1e-3)
    assert worse.min() >= 0 and worse.max() <= 255


def test_no_room_returns_the_images() -> None:
    images, labels = pictures()
    worse = pgd_attack(small_net(), images, labels, epsilon=0.0)
    assert torch.equal(worse, images) and worse.data_ptr() != images.data_ptr()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_random_starts_fill_the_ball(norm: str) -> None:
    from attentiondrop.evaluation.attacks import Attack

    images = torch.zeros(20_000, 3, 1, 1)
    attack = Attack(epsilon=0.5, norm=norm, bounds=WIDE)
    moves = attack.start(images, None).flatten(1)
    length = moves.abs().amax(1) if norm == "linf" else moves.norm(dim=1)
    # Uniform in a ball of three dimensions: (length / epsilon)^3 is uniform. Kolmogorov-Smirnov, alarm rate 1e-6.
    uniform = (length / 0.5).pow(3).sort().values
    assert (uniform - torch.linspace(0, 1, 20_000)).abs().max() < 2.7 / 20_000**0.5
    assert moves.mean(0).abs().max() < 0.02


def test_the_result_is_never_better_than_the_image_and_more_attempts_help() -> None:
    model = small_net()
    images, labels = pictures(64)

    def losses(x: Tensor) -> Tensor:
        with torch.no_grad():
            return nn.functional.cross_entropy(model(x), labels, reduction="none")

    def wrong(x: Tensor) -> Tensor:
        return model(x).argmax(-1) != labels

    def attack(**settings: int) -> Tensor:
        return pgd_attack(model, images, labels, epsilon=0.05, generator=torch.Generator().manual_seed(3), **settings)

    once, thrice = attack(steps=2), attack(steps=2, restarts=3)
    # What was wrong stays wrong, and with the same answer the loss is higher.
    for before, after in ((images, once), (once, thrice)):
        assert (wrong(after) | ~wrong(before)).all()
        same = wrong(after) == wrong(before)
        assert (losses(after)[same] >= losses(before)[same] - 1e-6).all()
    assert losses(thrice).mean() > losses(once).mean() > losses(images).mean()


def test_prefers_a_misclassified_point_to_a_higher_loss() -> None:
    class Hill(nn.Module):
        """Wrong only where x is near 0.5; a higher loss without being wrong elsewhere."""

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)[:, 0]
            near = (x - 0.5).abs() < 0.1
            # Three classes: the right one keeps its lead on each of the two others while their sum grows.
            right = torch.where(near, -0.05, 0.0) + 0 * x
            return torch.stack([right, -3.0 + 0 * x + torch.where(near, 2.97, 2.9 * x), -3.0 + 2.9 * x], dim=1)

    images, labels = torch.full((1, 1, 1, 1), 0.5), torch.tensor([0])
    worse = pgd_attack(Hill(), images, labels, epsilon=0.5, steps=10)
    assert Hill()(images).argmax() == 1 and Hill()(worse).argmax() == 1


def test_is_determined_by_the_generator() -> None:
    model = small_net()
    images, labels = pictures()

    def attack(seed: int) -> Tensor:
        return pgd_attack(model, images, labels, steps=2, generator=torch.Generator().manual_seed(seed))

    state = torch.get_rng_state()
    assert torch.equal(attack(1), attack(1)) and not torch.equal(attack(1), attack(2))
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(4)
    first = pgd_attack(model, images, labels, steps=2)
    torch.manual_seed(4)
    assert torch.equal(pgd_attack(model, images, labels, steps=2), first)


def test_leaves_modes_gradients_and_parameters_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 5))
    model.train()
    model[2].eval()
    images, labels = pictures()
    model[1].weight.grad = torch.ones_like(model[1].weight)
    before = copy.deepcopy(model.state_dict())
    seen: list[bool] = []
    model[3].register_forward_hook(lambda module, args, output: seen.append(module.training))
    pgd_attack(model, images, labels)
    assert not any(seen) and len(seen) == 12
    assert [module.training for module in model.modules()] == [True, True, True, False, True, True]
    assert torch.equal(model[1].weight.grad, torch.ones_like(model[1].weight))
    assert model[4].weight.grad is None and images.grad is None and not images.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_modes_are_restored_after_an_error() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2)).train()
    with pytest.raises(RuntimeError):
        pgd_attack(model, *pictures())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_works_in_any_context_and_in_full_precision(context) -> None:
    model = small_net()
    images, labels = pictures()
    expected = pgd_attack(model, images, labels, generator=torch.Generator().manual_seed(0))
    with context():
        inside, right = images.clone(), labels.clone()
        found = pgd_attack(model, inside, right, generator=torch.Generator().manual_seed(0))
        assert torch.is_grad_enabled() == (not torch.is_inference_mode_enabled() and context is not torch.no_grad)
    assert torch.equal(found, expected)


def test_an_attached_model_is_attacked_without_its_perturbations() -> None:
    timm = pytest.importorskip("timm")
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=8, patch_size=4, in_chans=3, num_classes=5, embed_dim=16, depth=2, num_heads=2
    ).train()
    images, labels = torch.rand(4, 3, 8, 8), torch.randint(5, (4,))
    plain = pgd_attack(model, images, labels, generator=torch.Generator().manual_seed(0))
    attachment = attach(model, "hard(p=0.5,k=3)+noise(sigma=1.0)")
    attached = pgd_attack(model, images, labels, generator=torch.Generator().manual_seed(0))
    assert torch.equal(plain, attached)
    assert model.training and attachment.sites and not torch.equal(model(images), model(images))


def test_normalisation_is_part_of_the_model() -> None:
    model = small_net()
    images, labels = pictures()
    scaled = nn.Sequential(Shift(), *model)
    one = pgd_attack(
        model, images, labels, normalise=lambda x: (x - 0.5) / 0.25, generator=torch.Generator().manual_seed(0)
    )
    other = pgd_attack(scaled, images, labels, generator=torch.Generator().manual_seed(0))
    assert torch.equal(one, other)


class Shift(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) / 0.25


def test_outputs_with_logits_and_wrapped_models() -> None:
    class Named(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.inner(x))

    model = small_net()
    images, labels = pictures()
    expected = pgd_attack(model, images, labels, generator=torch.Generator().manual_seed(0))
    for other in (Named(model), nn.DataParallel(model)):
        assert torch.equal(pgd_attack(other, images, labels, generator=torch.Generator().manual_seed(0)), expected)


def test_the_margin_moves_where_the_cross_entropy_is_saturated() -> None:
    model = linear()
    with torch.no_grad():
        model[1].weight.mul_(1e4)
    images = torch.rand(32, 3, 2, 2)
    labels = model(images).argmax(-1)
    stuck, moved = (pgd_attack(model, images, labels, epsilon=0.3, loss=loss) for loss in ("ce", "margin"))
    fooled = [float((model(x).argmax(-1) != labels).float().mean()) for x in (stuck, moved)]
    assert fooled[1] > fooled[0]


class Overflowing(nn.Module):
    """Its logits are NaN for bright images, as in a model that overflows."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1, keepdim=True)
        return torch.cat([1.0 - mean, 0.0 * mean], dim=1).masked_fill(mean > 0.5, torch.nan)


def test_a_prediction_that_is_not_a_number_is_wrong() -> None:
    images, labels = torch.full((4, 1, 2, 2), 0.45), torch.zeros(4, dtype=torch.long)
    bright = robust_accuracy(Overflowing(), (images + 0.1, labels), epsilons=[0.01])
    assert bright.accuracy == [0.0, 0.0]
    dark = robust_accuracy(Overflowing(), (images, labels), epsilons=[0.01, 0.4])
    assert dark.accuracy == [1.0, 1.0, 0.0]
    worse = pgd_attack(Overflowing(), images, labels, epsilon=0.4)
    assert bool((worse.flatten(1).mean(1) > 0.5).all())


class Broken(nn.Module):
    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> object:
        return self.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": -1}, "epsilon: expected a number >= 0, received -1"),
        ({"epsilon": float("nan")}, "epsilon: expected a number >= 0, received nan"),
        ({"step_size": 0}, "step_size: expected a number > 0, received 0"),
        ({"steps": 0}, "steps: expected a number >= 1, received 0"),
        ({"restarts": 1.5}, "restarts: expected an integer >= 1, received 1.5"),
        ({"norm": "l1"}, "norm: expected one of 'linf', 'l2', received 'l1'"),
        ({"loss": "hinge"}, "loss: expected one of 'ce', 'margin', received 'hinge'"),
        ({"bounds": (1, 0)}, "bounds: expected the lowest and the highest value of a pixel, received (1, 0)"),
        ({"bounds": 1.0}, "bounds: expected the lowest and the highest value of a pixel, received 1.0"),
        ({"bounds": (0, float("inf"))}, "bounds: expected a number, received inf"),
        (
            {"images": torch.zeros(4, 3, dtype=torch.uint8)},
            "images: expected a tensor of floating point, received 'torch.uint8'",
        ),
        ({"images": "cat.png"}, "images: expected a tensor of floating point, received 'str'"),
        (
            {"images": torch.randn(16, 3, 4, 4)},
            "images: expected pixels in [0, 1] (give normalisation as `normalise`), received",
        ),
        ({"images": torch.full((16, 3, 4, 4), torch.nan)}, "images: expected pixels in [0, 1]"),
        (
            {"labels": torch.zeros(3).long()},
            "images, labels: expected [N, ...] and [N] with samples, received [16, 3, 4, 4] and [3]",
        ),
        ({"labels": 3}, "received [16, 3, 4, 4] and int"),
        ({"labels": torch.tensor([5] + [0] * 15)}, "labels: expected classes from 0 to 4, received [0, 5]"),
        # What cross entropy ignores could never be attacked, and would count as wrong.
        ({"labels": torch.tensor([-100] + [1] * 15)}, "labels: expected classes from 0 to 4, received [-100, 1]"),
        ({"images": torch.zeros(0, 3), "labels": torch.zeros(0).long()}, "received [0, 3] and [0]"),
        (
            {"model": Broken({"a": 1})},
            "model: expected one that gives logits [N, classes], as a tensor or in .logits, received 'dict'",
        ),
        ({"model": Broken(torch.zeros(16))}, "as a tensor or in .logits, received [16]"),
        ({"model": Broken(torch.zeros(3, 5))}, "as a tensor or in .logits, received [3, 5]"),
    ],
)
def test_bad_input_is_named(changes: dict[str, object], message: str) -> None:
    images, labels = pictures()
    arguments = {"model": small_net(), "images": images, "labels": labels} | changes
    with pytest.raises(AttentionDropError, match=re.escape(message)):
        pgd_attack(**arguments)
