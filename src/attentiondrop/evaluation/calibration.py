"""Whether probabilities are right: calibration error, reliability diagram, Brier score, and the usual scores.

Predictions are always [N, classes] and labels [N]. Predictions may be logits or probabilities: they count as
probabilities if no entry is negative and every row sums to 1 (to within 0.001, or 0.02 in 16-bit dtypes).
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..errors import ShapeError, bad_argument
from ..scores import ReliabilityDiagram, Scores
from ..validation import integer, one_of

#: The usual number of bins of confidence.
BINS = 15

Norm = Literal["l1", "l2", "max"]


class _Bins(NamedTuple):
    """Of each bin of confidence: the mean confidence, the accuracy, and the number of samples."""

    confidence: list[float | None]
    accuracy: list[float | None]
    samples: list[int]


def calibration_error(predictions: Tensor, labels: Tensor, bins: int = BINS, norm: Norm = "l1") -> float:
    """The difference between confidence (the largest probability) and accuracy, over equally wide bins of confidence.

    `norm="l1"` is the expected calibration error (ECE): the mean of |accuracy - confidence| over bins, weighted with
    their number of samples. `"l2"` is the root of the weighted mean of squares, `"max"` the largest difference.
    It is that of torchmetrics, with one change: a confidence of exactly 1 belongs to the last bin, not to an extra one.

    On a finite sample, the error is too large on average: compare models on the same number of samples.

    >>> probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]])
    >>> round(calibration_error(probabilities, torch.tensor([0, 1, 1, 1])), 6)
    0.4
    """
    bins = integer("bins", bins, 1)
    one_of("norm", norm, ("l1", "l2", "max"))
    found = _sorted(_probabilities(predictions, labels), labels, bins)
    filled = [
        (many / len(labels), abs(accuracy - confidence))
        for confidence, accuracy, many in zip(*found, strict=True)
        if confidence is not None and accuracy is not None
    ]
    if norm == "max":
        return max(gap for _, gap in filled)
    if norm == "l2":
        return math.sqrt(sum(share * gap**2 for share, gap in filled))
    return sum(share * gap for share, gap in filled)


def reliability(predictions: Tensor, labels: Tensor, bins: int = BINS) -> ReliabilityDiagram:
    """The reliability diagram behind `calibration_error`.

    >>> diagram = reliability(torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 1, 1]), bins=2)
    >>> diagram.count, diagram.confidence[0], round(diagram.accuracy[1], 3)
    ([0, 3], None, 0.667)
    """
    bins = integer("bins", bins, 1)
    return ReliabilityDiagram(*_sorted(_probabilities(predictions, labels), labels, bins))


def brier_score(predictions: Tensor, labels: Tensor) -> float:
    """The squared error of the probabilities, summed over classes and averaged over samples: from 0 to 2.

    This is Brier's own convention. With two classes it is twice the score that uses one class only.

    >>> round(brier_score(torch.tensor([[0.8, 0.2], [0.5, 0.5]]), torch.tensor([0, 1])), 6)
    0.29
    """
    return _brier(_probabilities(predictions, labels), labels)


def scores(logits: Tensor, labels: Tensor, bins: int = BINS) -> Scores:
    """Accuracy, top-5 accuracy, negative log-likelihood, ECE and Brier score of logits.

    >>> result = scores(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2]))
    >>> result.accuracy, round(result.nll, 4), result.top5
    (0.5, 0.8955, None)
    """
    check_predictions(logits, labels)
    wide = _wide(logits)
    probabilities = _without_nan(wide.softmax(-1))
    return Scores(
        accuracy=_accuracy(wide, labels, 1),
        nll=float(cross_entropy(wide, labels.long())),
        ece=calibration_error(probabilities, labels, bins),
        brier=_brier(probabilities, labels),
        top5=_accuracy(wide, labels, 5) if logits.shape[1] > 5 else None,
    )


def _accuracy(logits: Tensor, labels: Tensor, top: int) -> float:
    # The largest alone by argmax, which takes the first of equal logits, as everywhere.
    named = logits.argmax(-1, keepdim=True) if top == 1 else logits.topk(top, dim=-1).indices
    return int((named == labels[:, None]).sum()) / len(labels)


def _brier(probabilities: Tensor, labels: Tensor) -> float:
    # (p - 1)^2 for the right class and p^2 for the others, without a matrix of zeros and ones.
    right = probabilities.gather(1, labels.long()[:, None])[:, 0]
    return float((probabilities.square().sum(-1) - 2 * right + 1).double().mean())


def _sorted(probabilities: Tensor, labels: Tensor, bins: int) -> _Bins:
    """Samples sorted into bins by their largest probability, in float64 on the CPU. Bins hold their lower edge."""
    largest, predicted = probabilities.detach().max(dim=-1)
    # Rounding may give more than 1, and 1 itself is no lower edge.
    confidence = largest.double().cpu().clamp(max=1 - torch.finfo(torch.float64).eps)
    right = (predicted == labels).cpu().double()
    index = torch.bucketize(confidence, torch.linspace(0, 1, bins + 1, dtype=torch.float64), right=True) - 1
    count = torch.bincount(index, minlength=bins).tolist()

    def means(values: Tensor) -> list[float | None]:
        sums = torch.bincount(index, weights=values, minlength=bins).tolist()
        return [total / many if many else None for total, many in zip(sums, count, strict=True)]

    return _Bins(means(confidence), means(right), count)


def _probabilities(predictions: Tensor, labels: Tensor) -> Tensor:
    check_predictions(predictions, labels)
    wide = _wide(predictions)
    slack = 1e-3 if predictions.dtype.itemsize >= 4 else 2e-2
    if bool((wide >= 0).all()) and bool(((wide.sum(-1) - 1).abs() <= slack).all()):
        return wide
    return _without_nan(wide.softmax(-1))


def _without_nan(probabilities: Tensor) -> Tensor:
    if bool(probabilities.isnan().any()):
        raise bad_argument(
            "predictions", "logits below infinity, and one above -infinity in each row", "NaN or infinity"
        )
    return probabilities


def _wide(predictions: Tensor) -> Tensor:
    return predictions.detach().to(torch.promote_types(predictions.dtype, torch.float32))


def check_predictions(predictions: Any, labels: Any) -> None:
    """Refuse what is not [N, classes] in floating point with [N] labels of these classes."""
    if not isinstance(predictions, Tensor) or not predictions.is_floating_point():
        raise bad_argument("predictions", "a tensor of floating point", _kind(predictions))
    if (
        not isinstance(labels, Tensor)
        or labels.is_floating_point()
        or labels.is_complex()
        or labels.dtype == torch.bool
    ):
        raise bad_argument("labels", "a tensor of integers", _kind(labels))
    if predictions.dim() != 2 or 0 in predictions.shape or labels.shape != predictions.shape[:1]:
        raise ShapeError(
            "predictions, labels: expected [N, classes] and [N] with samples and classes, received "
            f"{list(predictions.shape)} and {list(labels.shape)}"
        )
    check_classes(labels, predictions.shape[1])


def check_classes(labels: Tensor, classes: int) -> None:
    """Refuse labels that are none of so many classes, such as -100 for what a loss shall ignore."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise bad_argument("labels", f"classes from 0 to {classes - 1}", [low, high])


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
