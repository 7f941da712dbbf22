"""Accuracy under attack, and whether the attack can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, bad_argument
from ..scores import RobustnessReport
from ..validation import number
from .attacks import Attack, Loss, Norm, attackable, check_images, find_worst
from .soundness import Trial, find_doubts

__all__ = ["RobustnessReport", "robust_accuracy"]

Batch = tuple[Tensor, Tensor]


def robust_accuracy(
    model: nn.Module,
    batches: Batch | Iterable[Batch],
    *,
    epsilons: Iterable[float] = (2 / 255, 8 / 255),
    steps: int = 10,
    restarts: int = 1,
    norm: Norm = "linf",
    normalise: Callable[[Tensor], Tensor] | None = None,
    loss: Loss = "ce",
    generator: torch.Generator | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    on_batch: Callable[[int, int], None] | None = None,
) -> RobustnessReport:
    """For each epsilon, the share of images that the model classifies correctly in spite of `pgd_attack`.

    Gradients may be misleading (zero, shattered or saturated). Then the attack fails where another would succeed. The
    report is `sound` if

    - at the largest epsilon the mean loss is higher after the last step than after the random start;
    - accuracy does not rise with epsilon (by more than 1 %, or one example);
    - with an epsilon so large that any image can become any other, at most 1 % of up to 128 images withstand;
    - on these images, at the largest epsilon, random points fool the model no more often than the attack does (by more
      than 1 %, or one example), with as many points as the attack tries.

    A model that ignores its input cannot be fooled, so it fails the third check. Passing all checks proves nothing: the
    accuracy under a stronger attack may still be lower.

    Args:
        model: as for `pgd_attack`, like `normalise`, `loss`, `bounds`, `norm`, `steps` and `restarts`.
        batches: `(images, labels)`, or several such pairs. Images are within `bounds`, not normalised.
        epsilons: sizes of the attack; 0 is added.
        generator: for the random starts. They depend on images and epsilons only, so two models get the same starts.
        on_batch: called with the number of batches done, and of all batches (0 if `batches` has no length).

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        >>> images = torch.rand(20, 3, 2, 2)
        >>> report = robust_accuracy(model, (images, model(images).argmax(-1)), epsilons=[0.05])
        >>> report.epsilons, report.accuracy[0], report.sound
        ([0.0, 0.05], 1.0, True)
    """
    attack = Attack(steps=steps, restarts=restarts, norm=norm, loss=loss, bounds=bounds)
    sizes = _sizes(epsilons)
    pairs = _pairs(batches)
    total = len(pairs) if isinstance(pairs, Sized) else 0
    right, examples = [0] * len(sizes), 0
    first = last = 0.0
    kept: Batch | None = None
    with attackable(model, normalise) as predict:
        for done, (images, labels) in enumerate(pairs, start=1):
            check_images(images, labels, attack)
            kept = (images, labels) if kept is None else kept
            outcomes = [find_worst(predict, images, labels, attack.at(size), generator) for size in sizes]
            right = [sum_ + int((~found.wrong).sum()) for sum_, found in zip(right, outcomes, strict=True)]
            first += outcomes[-1].first * len(labels)
            last += outcomes[-1].last * len(labels)
            examples += len(labels)
            if on_batch is not None:
                on_batch(done, total)
        if kept is None:
            raise ArgumentError("batches: expected at least one pair (images, labels), received none")
        accuracy = [count / examples for count in right]
        trial = Trial(attack.at(sizes[-1]), first / examples, last / examples, sizes, accuracy, examples)
        notes = find_doubts(predict, *kept, trial, generator)
    return RobustnessReport(norm, sizes, accuracy, attack.steps, attack.restarts, examples, not notes, notes)


def _sizes(epsilons: Any) -> list[float]:
    try:
        given = [number("epsilons", epsilon, 0.0) for epsilon in epsilons]
    except TypeError:
        raise bad_argument("epsilons", "several numbers", epsilons) from None
    sizes = sorted({0.0, *given})
    if len(sizes) == 1:
        raise bad_argument("epsilons", "at least one number > 0", epsilons)
    return sizes


def _pairs(batches: Any) -> Iterable[Batch]:
    if isinstance(batches, (tuple, list)) and len(batches) == 2 and all(isinstance(x, Tensor) for x in batches):
        images, labels = batches
        return [(images, labels)]
    if isinstance(batches, Tensor) or not isinstance(batches, Iterable):
        raise bad_argument("batches", "a pair (images, labels) or several of them", type(batches).__name__)
    return batches
