"""The temperature that makes a classifier's probabilities right on average, against an optimiser and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from attentiondrop import AttentionDropError
from attentiondrop.evaluation import calibration_error, fit_temperature, scores
from attentiondrop.evaluation.temperature import HIGHEST, LOWEST


def drawn(samples: int, classes: int, temperature: float, seed: int) -> tuple[Tensor, Tensor]:
    """Logits whose labels were drawn at a temperature."""
    draw = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=draw, dtype=torch.float64)
    labels = torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw)[:, 0]
    return logits, labels


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("classes", "temperature"), [(2, 0.4), (10, 1.0), (100, 2.5)])
def test_it_has_the_lowest_likelihood_that_an_optimiser_finds(
    classes: int, temperature: float, dtype: torch.dtype
) -> None:
    logits, labels = drawn(400, classes, temperature, seed=classes)

    def nll(log_t: float) -> float:
        return torch.nn.functional.cross_entropy(logits / math.exp(log_t), labels).item()

    best = minimize_scalar(nll, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    assert fit_temperature(logits.to(dtype), labels) == pytest.approx(math.exp(best.x), rel=1e-6)


def test_it_finds_the_temperature_that_drew_the_labels_and_mends_the_calibration() -> None:
    logits, labels = drawn(40_000, 10, 2.5, seed=0)
    found = fit_temperature(*drawn(40_000, 10, 2.5, seed=1))
    assert found == pytest.approx(2.5, rel=0.03)
    before, after = calibration_error(logits, labels), calibration_error(logits / found, labels)
    assert before > 0.2 and after < 0.02
    assert scores(logits / found, labels).accuracy == scores(logits, labels).accuracy


def test_two_classes_by_hand() -> None:
    """Three of four are right, all with a gap of 4 between the logits: the best confidence is 3/4, so 4 / T = log 3."""
    logits = torch.tensor([[4.0, 0.0]] * 3 + [[0.0, 4.0]])
    assert fit_temperature(logits, torch.zeros(4, dtype=torch.int64)) == pytest.approx(4 / math.log(3), rel=1e-9)


@pytest.mark.parametrize("moved", [1e4, -1e4])
def test_what_all_logits_of_a_row_have_in_common_does_not_matter(moved: float) -> None:
    logits, labels = drawn(50, 5, 1.3, seed=3)
    assert fit_temperature(logits + moved, labels) == pytest.approx(fit_temperature(logits, labels), rel=1e-6)


def test_a_model_that_is_always_or_never_right_gets_an_end_of_the_range() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert fit_temperature(logits, torch.tensor([0, 1])) == pytest.approx(LOWEST)
    assert fit_temperature(logits, torch.tensor([1, 0])) == pytest.approx(HIGHEST)


@pytest.mark.parametrize("logits", [torch.zeros(3, 4), torch.tensor([[0.0, -math.inf], [5.0, 5.0]])])
def test_without_any_difference_of_logits_it_is_one(logits: Tensor) -> None:
    """Every temperature gives the same probabilities, so none is better."""
    assert fit_temperature(logits, torch.zeros(len(logits), dtype=torch.int64)) == 1.0


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_are_integers_of_any_kind(dtype: torch.dtype) -> None:
    logits, labels = drawn(30, 4, 1.7, seed=8)
    assert fit_temperature(logits, labels.to(dtype)) == fit_temperature(logits, labels)


def test_a_class_that_is_ruled_out_changes_nothing() -> None:
    logits, labels = drawn(60, 4, 1.7, seed=4)
    more = torch.cat([logits, torch.full((60, 1), -math.inf, dtype=logits.dtype)], dim=1)
    assert fit_temperature(more, labels) == fit_temperature(logits, labels)


@pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
def test_where_no_temperature_helps_it_is_one(bad: float) -> None:
    """The label has a probability of zero at every temperature, or there is no probability at all."""
    logits, labels = drawn(20, 3, 2.0, seed=5)
    logits[7, (labels[7] + (bad == math.inf)) % 3] = bad
    assert fit_temperature(logits, labels) == 1.0


def test_logits_in_half_precision_keep_their_gradients() -> None:
    logits, labels = drawn(30, 3, 2.0, seed=6)
    half = logits.bfloat16().requires_grad_()
    assert fit_temperature(half, labels) == fit_temperature(half.detach().double(), labels)
    assert half.grad is None


@pytest.mark.parametrize(
    ("logits", "labels", "named"),
    [
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), "predictions"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "labels"),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), "labels"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(logits: Tensor, labels: Tensor, named: str) -> None:
    with pytest.raises(AttentionDropError, match=named):
        fit_temperature(logits, labels)
