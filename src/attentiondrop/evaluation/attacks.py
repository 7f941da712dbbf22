"""Projected gradient descent: follow gradients to the worst input near an image."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..errors import ShapeError, bad_argument
from ..torch.attach import unwrapped
from ..validation import integer, number, one_of
from .calibration import check_classes

Norm = Literal["linf", "l2"]
Loss = Literal["ce", "margin"]
#: Images to logits.
Predict = Callable[[Tensor], Tensor]

#: Without a given step size, it is `REACH * epsilon / steps`: all steps together could go REACH times epsilon.
REACH = 2.5


@dataclass(frozen=True)
class Attack:
    """The checked settings of projected gradient descent; `pgd_attack` explains them."""

    epsilon: float = 8 / 255
    step_size: float | None = None
    steps: int = 10
    restarts: int = 1
    norm: str = "linf"
    loss: str = "ce"
    bounds: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, 0.0)
        if self.step_size is not None and number("step_size", self.step_size, 0.0) == 0.0:
            raise bad_argument("step_size", "a number > 0", self.step_size)
        for name in ("steps", "restarts"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        one_of("norm", self.norm, ("linf", "l2"))
        one_of("loss", self.loss, ("ce", "margin"))
        wrong = bad_argument("bounds", "the lowest and the highest value of a pixel", self.bounds)
        if not isinstance(self.bounds, tuple | list) or len(self.bounds) != 2:
            raise wrong
        low, high = (number("bounds", bound, -float("inf")) for bound in self.bounds)
        if low >= high:
            raise wrong

    def at(self, epsilon: float, **changes: Any) -> Attack:
        """The same attack with another epsilon, and perhaps other settings."""
        return dataclasses.replace(self, epsilon=epsilon, **changes)

    def start(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        """A point drawn uniformly from the ball around each image, inside the bounds."""
        device = images.device if generator is None else generator.device
        if self.norm == "linf":
            moves = torch.rand(images.shape, generator=generator, device=device, dtype=images.dtype) * 2 - 1
        else:
            moves = torch.randn(images.shape, generator=generator, device=device, dtype=images.dtype)
            radius = torch.rand(len(images), generator=generator, device=device, dtype=images.dtype)
            moves = _unit(moves) * _broadcast(radius ** (1 / images[0].numel()), images)
        return self.project(images + self.epsilon * moves.to(images.device), images)

    def step(self, x: Tensor, gradient: Tensor, images: Tensor) -> Tensor:
        """One step along the gradient, then back into the ball and the bounds."""
        size = REACH * self.epsilon / self.steps if self.step_size is None else self.step_size
        direction = gradient.sign() if self.norm == "linf" else _unit(gradient)
        return self.project(x + size * direction, images)

    def project(self, x: Tensor, images: Tensor) -> Tensor:
        """The nearest point within epsilon of `images`, then moved into the bounds, which brings it no further away."""
        move = x - images
        if self.norm == "linf":
            move = move.clamp(-self.epsilon, self.epsilon)
        else:
            length = _broadcast(_norms(move), images)
            move = move * (self.epsilon / length.clamp(min=torch.finfo(x.dtype).tiny)).clamp(max=1.0)
        return (images + move).clamp(*self.bounds)


class Outcome(NamedTuple):
    """What an attack found. `first` and `last` are the mean losses after the random start and after the last step."""

    images: Tensor
    wrong: Tensor
    first: float
    last: float


def pgd_attack(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float = 8 / 255,
    step_size: float | None = None,
    steps: int = 10,
    restarts: int = 1,
    norm: Norm = "linf",
    normalise: Callable[[Tensor], Tensor] | None = None,
    loss: Loss = "ce",
    generator: torch.Generator | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Images within `epsilon` of `images` on which the model is as wrong as projected gradient descent can make it.

    Every restart begins at a random point of the ball and takes `steps` steps along the gradient of the loss (its sign
    for linf, its direction for l2). After each step, the point is projected into the ball and the bounds. The result
    is the point with the highest loss among the misclassified points (or among all points, if none is misclassified).
    The image itself is one of the points.

    The model runs in evaluation mode, so attached regularisers and dropout are off. Afterwards every module is in its
    former mode. Autocast is off. No parameter's `.grad` changes.

    Args:
        model: gives logits [N, classes], as a tensor or in `.logits`.
        images: [N, ...] within `bounds`, not normalised.
        labels: [N], the right classes.
        epsilon: how far a pixel (linf), or the image (l2), may move, in units of the pixels.
        step_size: by default `2.5 * epsilon / steps`.
        steps: gradient steps of a restart.
        restarts: attempts from different random points.
        norm: "linf" or "l2".
        normalise: applied to images before the model sees them.
        loss: "ce", the cross entropy, or "margin", the largest logit of another class minus that of the right one. The
            gradient of "margin" does not vanish where the model is very sure.
        generator: of the random starts; by default the global one of the device.
        bounds: the lowest and highest value of a pixel.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        >>> images, labels = torch.rand(5, 3, 2, 2), torch.tensor([0, 1, 2, 0, 1])
        >>> worse = pgd_attack(model, images, labels, epsilon=0.1)
        >>> bool(((worse - images).abs() <= 0.1 + 1e-6).all())
        True
    """
    attack = Attack(epsilon, step_size, steps, restarts, norm, loss, bounds)
    check_images(images, labels, attack)
    with attackable(model, normalise) as predict:
        return find_worst(predict, images, labels, attack, generator).images


def find_worst(
    predict: Predict, images: Tensor, labels: Tensor, attack: Attack, generator: torch.Generator | None
) -> Outcome:
    """Run the attack; `predict` comes from `attackable`, and all else was checked by `check_images`."""
    # Cloned, because tensors created in inference mode cannot be part of an autograd graph.
    images, labels = images.detach().clone(), labels.clone()
    with torch.no_grad():
        best, logits = images.clone(), predict(images)
        check_classes(labels, logits.shape[1])
        most, wrong = judge(logits, labels, attack.loss)
    if attack.epsilon == 0:
        mean = float(most.mean())
        return Outcome(best, wrong, mean, mean)
    first = last = 0.0
    for _ in range(attack.restarts):
        x = attack.start(images, generator)
        for step in range(attack.steps + 1):
            x.requires_grad_()
            height, miss = judge(predict(x), labels, attack.loss)
            first += float(height.detach().mean()) if step == 0 else 0.0
            better = (miss & ~wrong) | ((miss == wrong) & (height.detach() > most))
            best = torch.where(_broadcast(better, images), x.detach(), best)
            most, wrong = torch.where(better, height.detach(), most), wrong | miss
            if step < attack.steps:
                # A backward pass uses the autocast that is active now, not that of its forward pass.
                with torch.autocast(x.device.type, enabled=False):
                    (gradient,) = torch.autograd.grad(height.sum(), x)
                # A gradient that is NaN moves nothing.
                x = attack.step(x.detach(), gradient.nan_to_num(0.0), images)
        last += float(height.detach().mean())
    return Outcome(best, wrong, first / attack.restarts, last / attack.restarts)


def judge(logits: Tensor, labels: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """The loss of each sample, and whether it is misclassified."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # Without the second part, logits that are all NaN would count as class 0.
    wrong = (logits.detach().argmax(-1) != labels) | logits.detach().isnan().any(-1)
    if loss == "ce":
        return cross_entropy(logits, labels.long(), reduction="none"), wrong
    right = logits.gather(1, labels.long()[:, None])[:, 0]
    others = logits.scatter(1, labels.long()[:, None], -torch.inf).amax(-1)
    return others - right, wrong


@contextmanager
def attackable(model: nn.Module, normalise: Callable[[Tensor], Tensor] | None) -> Iterator[Predict]:
    """The model as a function of images: in evaluation mode, with gradients, in full precision; restored at the end."""
    # DDP expects a backward pass through the parameters after each forward pass, and there is none here.
    plain = unwrapped(model)
    modes = [(module, module.training) for module in model.modules()]

    def predict(images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, enabled=False):
            output: Any = plain(images if normalise is None else normalise(images))
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(images):
            what = list(logits.shape) if isinstance(logits, Tensor) else type(output).__name__
            raise bad_argument("model", "one that gives logits [N, classes], as a tensor or in .logits", what)
        return logits

    model.eval()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield predict
    finally:
        # Each module gets its own mode back: a model in training may have parts that are in evaluation mode.
        for module, training in modes:
            module.training = training


def check_images(images: Any, labels: Any, attack: Attack) -> None:
    """Refuse images outside the bounds (most often: normalised ones) and labels that do not belong to them."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        kind = str(images.dtype) if isinstance(images, Tensor) else type(images).__name__
        raise bad_argument("images", "a tensor of floating point", kind)
    if not isinstance(labels, Tensor) or images.dim() < 2 or 0 in images.shape or labels.shape != images.shape[:1]:
        what = list(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise ShapeError(
            f"images, labels: expected [N, ...] and [N] with samples, received {list(images.shape)} and {what}"
        )
    low, high = float(images.min()), float(images.max())
    slack = 1e-6 * (attack.bounds[1] - attack.bounds[0])
    # `not` catches NaN too.
    if not (attack.bounds[0] - slack <= low and high <= attack.bounds[1] + slack):
        inside = "[{:g}, {:g}]".format(*attack.bounds)
        raise bad_argument("images", f"pixels in {inside} (give normalisation as `normalise`)", f"{low:g} to {high:g}")


def _norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return norms


def _unit(x: Tensor) -> Tensor:
    """Each sample divided by its l2 norm; zeros stay zeros."""
    return x / _broadcast(_norms(x), x).clamp(min=torch.finfo(x.dtype).tiny)


def _broadcast(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))
