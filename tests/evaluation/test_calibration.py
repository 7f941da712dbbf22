"""Calibration and scores against plain loops and worked examples."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor

from attentiondrop import AttentionDropError
from attentiondrop.evaluation import ReliabilityDiagram, brier_score, calibration_error, reliability, scores


def slow_bins(probabilities: Tensor, labels: Tensor, bins: int) -> list[list[tuple[float, bool]]]:
    """(confidence, right) of each sample, sorted into bins [i / bins, (i + 1) / bins), the last closed."""
    filled: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for row, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        filled[min(bins - 1, int(confidence * bins))].append((confidence, row.index(confidence) == label))
    return filled


def slow_error(probabilities: Tensor, labels: Tensor, bins: int, norm: str) -> float:
    gaps, shares = [], []
    for members in slow_bins(probabilities, labels, bins):
        if members:
            confidence = sum(c for c, _ in members) / len(members)
            accuracy = sum(right for _, right in members) / len(members)
            gaps.append(abs(confidence - accuracy))
            shares.append(len(members) / len(labels))
    if norm == "max":
        return max(gaps)
    power = 1 if norm == "l1" else 2
    return sum(share * gap**power for share, gap in zip(shares, gaps, strict=True)) ** (1 / power)


def random_predictions(samples: int = 500, classes: int = 7, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    logits = scale * torch.randn(samples, classes)
    # Labels drawn so that larger logits are right more often.
    labels = torch.multinomial((0.5 * logits).softmax(-1), 1)[:, 0]
    return logits, labels


def test_a_worked_example() -> None:
    # Confidences 0.95, 0.9, 0.65, 0.6; right, wrong, right, right. Bins of 0.2: {0.65, 0.6} and {0.95, 0.9}.
    probabilities = torch.tensor([[0.95, 0.05], [0.1, 0.9], [0.65, 0.35], [0.4, 0.6]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1])
    upper, lower = abs(0.925 - 0.5), abs(0.625 - 1.0)
    assert calibration_error(probabilities, labels, bins=5) == pytest.approx((upper + lower) / 2)
    assert calibration_error(probabilities, labels, bins=5, norm="max") == pytest.approx(upper)
    assert calibration_error(probabilities, labels, bins=5, norm="l2") == pytest.approx(
        math.sqrt((upper**2 + lower**2) / 2)
    )
    diagram = reliability(probabilities, labels, bins=5)
    assert diagram.count == [0, 0, 0, 2, 2]
    assert diagram.confidence[:3] == diagram.accuracy[:3] == [None] * 3
    assert diagram.confidence[3:] == pytest.approx([0.625, 0.925])
    assert diagram.accuracy[3:] == [1.0, 0.5]
    assert diagram.edges == [0, 0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("bins", [1, 2, 15, 100])
def test_agrees_with_a_plain_loop(bins: int, norm: str) -> None:
    logits, labels = random_predictions()
    probabilities = logits.double().softmax(-1)
    expected = slow_error(probabilities, labels, bins, norm)
    assert calibration_error(probabilities, labels, bins, norm) == pytest.approx(expected, abs=1e-12)
    assert calibration_error(logits, labels, bins, norm) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("bins", [1, 15])
def test_the_diagram_agrees_with_a_plain_loop_and_with_the_error(bins: int) -> None:
    logits, labels = random_predictions()
    probabilities = logits.double().softmax(-1)
    diagram = reliability(probabilities, labels, bins)
    for members, confidence, accuracy, count in zip(
        slow_bins(probabilities, labels, bins), diagram.confidence, diagram.accuracy, diagram.count, strict=True
    ):
        assert count == len(members)
        if count:
            assert confidence == pytest.approx(sum(c for c, _ in members) / count)
            assert accuracy == pytest.approx(sum(right for _, right in members) / count)
    gaps = [
        count * abs(confidence - accuracy)
        for confidence, accuracy, count in zip(diagram.confidence, diagram.accuracy, diagram.count, strict=True)
        if confidence is not None and accuracy is not None
    ]
    assert sum(gaps) / len(labels) == pytest.approx(calibration_error(probabilities, labels, bins))


def test_full_confidence_belongs_to_the_last_bin() -> None:
    probabilities = torch.tensor([[1.0, 0.0], [0.99, 0.01], [1.0, 0.0], [0.99, 0.01]])
    labels = torch.tensor([0, 1, 1, 0])
    assert reliability(probabilities, labels).count == [0] * 14 + [4]
    assert calibration_error(probabilities, labels) == pytest.approx(0.995 - 0.5)
    sure = torch.tensor([[80.0, 0.0], [80.0, 0.0]])
    assert calibration_error(sure, torch.tensor([0, 0])) == pytest.approx(0.0, abs=1e-6)
    assert calibration_error(sure, torch.tensor([1, 1]), norm="l2") == pytest.approx(1.0)


def test_perfect_calibration_has_no_error() -> None:
    probabilities = torch.tensor([[0.75, 0.25]] * 4)
    assert calibration_error(probabilities, torch.tensor([0, 0, 0, 1])) == pytest.approx(0.0, abs=1e-7)
    assert calibration_error(probabilities, torch.tensor([0, 0, 0, 1]), norm="l2") == pytest.approx(0.0, abs=1e-7)


def test_scores_are_those_of_torchmetrics() -> None:
    metrics = pytest.importorskip("torchmetrics.functional.classification")
    logits, labels = random_predictions()
    logits = logits.double()
    found = scores(logits, labels)
    for top, accuracy in ((1, found.accuracy), (5, found.top5)):
        theirs = metrics.multiclass_accuracy(logits, labels, num_classes=7, average="micro", top_k=top)
        assert accuracy == pytest.approx(float(theirs), abs=1e-6)  # theirs is a float32
    probabilities = logits.softmax(-1)
    for norm in ("l1", "l2", "max"):
        theirs = metrics.multiclass_calibration_error(probabilities, labels, num_classes=7, n_bins=15, norm=norm)
        assert calibration_error(probabilities, labels, 15, norm) == pytest.approx(float(theirs), abs=1e-6)


def test_brier_score_sums_over_classes() -> None:
    logits, labels = random_predictions(50, 4)
    probabilities = logits.softmax(-1)
    target = torch.nn.functional.one_hot(labels, 4)
    assert brier_score(logits, labels) == pytest.approx(
        float((probabilities - target).square().sum(-1).mean()), abs=1e-6
    )
    right, wrong = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    assert brier_score(right, torch.tensor([0])) == 0.0
    assert brier_score(wrong, torch.tensor([0])) == 2.0


@pytest.mark.parametrize("classes", [2, 5, 6, 100])
def test_scores_agree_with_their_definitions(classes: int) -> None:
    logits, labels = random_predictions(300, classes)
    found = scores(logits, labels)
    order = logits.argsort(-1, descending=True)
    assert found.accuracy == int((order[:, 0] == labels).sum()) / 300
    expected = int((order[:, :5] == labels[:, None]).any(-1).sum()) / 300
    assert found.top5 == (expected if classes > 5 else None)
    assert found.nll == pytest.approx(float(-logits.log_softmax(-1)[torch.arange(300), labels].mean()), rel=1e-6)
    assert found.ece == pytest.approx(slow_error(logits.softmax(-1), labels, 15, "l1"), abs=1e-6)
    assert found.brier == pytest.approx(brier_score(logits, labels))


def test_scores_takes_logits_that_look_like_probabilities_for_logits() -> None:
    logits, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    assert scores(logits, labels).ece == pytest.approx(1 - 1 / (1 + math.exp(-1)))
    assert scores(logits, labels).brier > 0.1
    assert calibration_error(logits, labels) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_first(dtype: torch.dtype) -> None:
    logits, labels = random_predictions(300, 50)
    half = logits.to(dtype)
    assert scores(half, labels) == scores(half.float(), labels)
    probabilities = logits.softmax(-1).to(dtype)
    # As probabilities, not as logits, whose confidences would all be near 1 / 50.
    assert calibration_error(probabilities, labels) == pytest.approx(calibration_error(logits, labels), abs=0.02)


def test_integer_labels_of_any_width_and_gradients_do_not_matter() -> None:
    logits, labels = random_predictions(100, 7)
    expected = scores(logits, labels)
    assert scores(logits.clone().requires_grad_(), labels.to(torch.uint8)) == expected
    assert scores(logits, labels.to(torch.int32)) == expected


def test_masked_classes_are_allowed() -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0]])
    assert calibration_error(logits, torch.tensor([2])) == pytest.approx(1 - 1 / (1 + math.exp(-1)), abs=1e-6)


GOOD = (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        ([[0.0]], GOOD[1], "predictions: expected a tensor of floating point, received 'list'"),
        (
            torch.zeros(4, 3, dtype=torch.long),
            GOOD[1],
            "predictions: expected a tensor of floating point, received 'torch.int64'",
        ),
        (GOOD[0], [0] * 4, "labels: expected a tensor of integers, received 'list'"),
        (GOOD[0], torch.zeros(4), "labels: expected a tensor of integers, received 'torch.float32'"),
        (GOOD[0], torch.zeros(4, dtype=torch.bool), "labels: expected a tensor of integers, received 'torch.bool'"),
        (
            GOOD[0],
            torch.zeros(3, dtype=torch.long),
            "expected [N, classes] and [N] with samples and classes, received [4, 3] and [3]",
        ),
        (torch.zeros(4, 3, 2), GOOD[1], "received [4, 3, 2] and [4]"),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), "received [0, 3] and [0]"),
        (GOOD[0], GOOD[1] + 3, "labels: expected classes from 0 to 2, received [3, 3]"),
        (GOOD[0], GOOD[1] - 1, "labels: expected classes from 0 to 2, received [-1, -1]"),
        (GOOD[0] * math.nan, GOOD[1], "predictions: expected logits below infinity"),
        (GOOD[0] + math.inf, GOOD[1], "predictions: expected logits below infinity"),
    ],
)
@pytest.mark.parametrize("function", [calibration_error, reliability, brier_score, scores])
def test_bad_input_is_named(function, predictions, labels, message: str) -> None:
    with pytest.raises(AttentionDropError, match=re.escape(message)):
        function(predictions, labels)


def test_bad_settings_are_named() -> None:
    with pytest.raises(AttentionDropError, match=r"bins: expected a number >= 1, received 0"):
        calibration_error(*GOOD, bins=0)
    with pytest.raises(AttentionDropError, match=r"bins: expected an integer >= 1, received 1\.5"):
        reliability(*GOOD, bins=1.5)
    with pytest.raises(AttentionDropError, match=r"norm: expected one of 'l1', 'l2', 'max', received 'l3'"):
        calibration_error(*GOOD, norm="l3")


def test_a_diagram_compares_by_value() -> None:
    assert reliability(*GOOD, bins=2) == ReliabilityDiagram([pytest.approx(1 / 3), None], [1.0, None], [4, 0])
