"""Checks that show when an attack cannot be trusted, for example because gradients are masked."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .attacks import Attack, Predict, find_worst, judge

#: At most this many images are attacked again for the checks.
EXAMPLES = 128
#: The share of images on which an attack without limits may fail.
WITHSTAND = 0.01
#: An attack without limits gets at least this many steps.
STEPS = 40
#: A rise of the loss by less than this share of it counts as rounding.
RISE = 1e-4


class Trial(NamedTuple):
    """An attack at its largest epsilon, its mean loss at its start and end, and the accuracy at every epsilon."""

    attack: Attack
    first: float
    last: float
    epsilons: list[float]
    accuracy: list[float]
    examples: int


def find_doubts(
    predict: Predict, images: Tensor, labels: Tensor, trial: Trial, generator: torch.Generator | None
) -> list[str]:
    """One sentence for each check that the attack does not pass; empty if it passes all."""
    images, labels = images[:EXAMPLES], labels[:EXAMPLES]
    found = [
        _loss_stays(trial),
        _accuracy_rises(trial),
        _some_withstand(predict, images, labels, trial.attack, generator),
        _chance_is_stronger(predict, images, labels, trial.attack, generator),
    ]
    return [doubt for doubt in found if doubt is not None]


def _loss_stays(trial: Trial) -> str | None:
    # `not` catches NaN too.
    if not trial.last - trial.first > RISE * abs(trial.first):
        return (
            f"the mean loss does not rise over the {trial.attack.steps} steps at epsilon {trial.attack.epsilon:.4g} "
            f"(from {trial.first:.4g} to {trial.last:.4g}): gradients do not help the attack"
            + (', loss="margin" may help' if trial.attack.loss == "ce" else "")
        )
    return None


def _accuracy_rises(trial: Trial) -> str | None:
    slack = max(WITHSTAND, 1 / trial.examples)
    for index in range(1, len(trial.epsilons)):
        before, after = trial.accuracy[index - 1 : index + 1]
        if after > before + slack:
            return (
                f"accuracy rises from {_percent(before)} at epsilon {trial.epsilons[index - 1]:.4g} to "
                f"{_percent(after)} at epsilon {trial.epsilons[index]:.4g}"
            )
    return None


def _some_withstand(
    predict: Predict, images: Tensor, labels: Tensor, attack: Attack, generator: torch.Generator | None
) -> str | None:
    low, high = attack.bounds
    # The largest distance between two images, in the norm of the attack.
    far = (high - low) * (images[0].numel() ** 0.5 if attack.norm == "l2" else 1.0)
    unlimited = attack.at(far, steps=max(attack.steps, STEPS))
    accuracy = 1 - float(find_worst(predict, images, labels, unlimited, generator).wrong.float().mean())
    if accuracy > WITHSTAND:
        return (
            f"{_percent(accuracy)} of {len(labels)} images withstand an attack without limits (epsilon {far:.4g}), "
            f"expected at most {_percent(WITHSTAND)}: gradients are masked, or the model ignores its input"
        )
    return None


def _chance_is_stronger(
    predict: Predict, images: Tensor, labels: Tensor, attack: Attack, generator: torch.Generator | None
) -> str | None:
    by_attack = float(find_worst(predict, images, labels, attack, generator).wrong.float().mean())
    fooled = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    with torch.no_grad():
        for _ in range(attack.restarts * (attack.steps + 1)):
            fooled |= judge(predict(attack.start(images.clone(), generator)), labels, attack.loss)[1]
    by_chance = float(fooled.float().mean())
    if by_chance > by_attack + max(WITHSTAND, 1 / len(labels)):
        return (
            f"random points fool the model more often than the attack at epsilon {attack.epsilon:.4g} "
            f"({_percent(by_chance)} against {_percent(by_attack)} of {len(labels)} images)"
        )
    return None


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
