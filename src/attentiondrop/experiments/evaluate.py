"""How good a trained model is on the test images: accuracy, negative log-likelihood, calibration error."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

from .data.dataset import Dataset
from .record import Metrics

#: Bins of the expected calibration error, the usual number.
ECE_BINS = 15
_BATCH = 512


def evaluate(model: nn.Module, data: Dataset) -> Metrics:
    """The metrics of `model` in eval mode on the test half; accuracy and ECE are shares in [0, 1]."""
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(images) for images in torch.split(data.test_images, _BATCH)])
    device = logits.device
    accuracy = MulticlassAccuracy(num_classes=data.classes, average="micro").to(device)
    ece = MulticlassCalibrationError(num_classes=data.classes, n_bins=ECE_BINS, norm="l1").to(device)
    return Metrics(
        accuracy=accuracy(logits, data.test_labels).item(),
        ece=ece(logits.softmax(dim=-1), data.test_labels).item(),
        nll=cross_entropy(logits, data.test_labels).item(),
    )
