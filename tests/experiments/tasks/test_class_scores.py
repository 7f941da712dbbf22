"""The scores of classifiers after training, on data whose logits are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn

from attentiondrop.evaluation import fit_temperature, reliability, scores
from attentiondrop.experiments.tasks.class_scores import judge_classes
from attentiondrop.experiments.tasks.metrics import CLASS_METRICS


@dataclass(frozen=True)
class Known:
    """Data whose inputs are the logits."""

    parts: dict[str, tuple[Tensor, Tensor]]
    read: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(labels) for name, (_, labels) in self.parts.items()}

    def batches(self, part: str, batch_size: int, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        self.read.append(part)
        return zip(*(each.split(batch_size) for each in self.parts[part]), strict=True)


def known(seed: int = 0) -> Known:
    """The validation part was drawn at a temperature of 0.5, the test part at one of 2."""
    draw = torch.Generator().manual_seed(seed)
    parts = {}
    for name, temperature in (("validation", 0.5), ("test", 2.0)):
        logits = 2 * torch.randn(300, 4, generator=draw)
        parts[name] = logits, torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw)[:, 0]
    return Known(parts)


def test_the_validation_part_decides_the_temperature_and_the_test_part_is_scored_with_it() -> None:
    data = known()
    found = judge_classes(nn.Identity(), data, 64, None)
    temperature = fit_temperature(*data.parts["validation"])
    assert temperature == pytest.approx(0.5, abs=0.1)  # fitted on the test part, it would be about 2
    logits, labels = data.parts["test"]
    scaled = scores(logits / temperature, labels)
    assert found.test is not None
    assert found.test["temperature"] == temperature
    assert (found.test["ece_scaled"], found.test["nll_scaled"]) == pytest.approx((scaled.ece, scaled.nll))
    plain = scores(logits, labels)
    assert [found.test[name] for name in ("accuracy", "nll", "ece", "brier")] == pytest.approx(
        [plain.accuracy, plain.nll, plain.ece, plain.brier]
    )
    assert found.reliability == reliability(logits, labels)  # of the model as it is


def test_the_part_that_decides_the_temperature_has_no_scaled_scores() -> None:
    found = judge_classes(nn.Identity(), known(), 64, None)
    assert found.validation.keys() == {"accuracy", "nll", "ece", "brier"}


def test_each_part_is_predicted_once() -> None:
    data = known()
    judge_classes(nn.Identity(), data, 64, None)
    assert data.read == ["validation", "test"]


def test_without_the_test_part_nothing_is_scaled() -> None:
    data = known()
    data = replace(data, parts={"validation": data.parts["validation"]})
    found = judge_classes(nn.Identity(), data, 64, None)
    assert (found.test, found.reliability, found.robustness) == (None, None, None)
    assert data.read == ["validation"] and set(found.validation) == {"accuracy", "nll", "ece", "brier"}


def test_outputs_that_are_not_logits_are_picked() -> None:
    class Wrapped(nn.Module):
        def forward(self, inputs: Tensor) -> dict[str, Tensor]:
            return {"logits": inputs}

    data = known()
    picked = judge_classes(Wrapped(), data, 64, None, lambda output: output["logits"])
    assert picked == judge_classes(nn.Identity(), data, 64, None)


def test_what_a_report_shows_of_scaling_says_what_it_is() -> None:
    metric = CLASS_METRICS.named("ece_scaled")
    assert metric.compared and not metric.higher_is_better and "validation part" in metric.note
    assert not metric.brief  # a terminal has no room for its explanation
