"""Temperature scaling: one number that makes the probabilities of a trained classifier right on average."""

from __future__ import annotations

import math

from torch import Tensor

from .calibration import check_predictions

#: The best temperature is outside of these only if a model is nearly always right, or no better than chance.
LOWEST, HIGHEST = 0.01, 100.0
#: Halvings of the interval of log-temperatures. After these, its ends are equal to eleven digits.
_HALVINGS = 45


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T for which the logits / T have the lowest negative log-likelihood (Guo et al. 2017), from 0.01 to 100.

    A model whose T is below 1 is right more often than it is sure; one whose T is above 1 is too sure. Fit T on a
    validation part, and divide other logits by it: predictions and accuracy stay as they are.

    In 1/T the likelihood has one optimum, so halving an interval finds it. The result is 1 if no T helps: all logits of
    each row are equal, a label has a logit of -infinity, or a logit is NaN or +infinity.

    >>> import torch
    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    >>> round(fit_temperature(logits, torch.tensor([0, 0, 0, 0])), 4)  # sure of 98 %, and right in 75 % of the cases
    3.641
    """
    check_predictions(logits, labels)
    wide = logits.detach().double().cpu()
    wide = wide - wide.max(dim=-1, keepdim=True).values
    if bool(wide.isnan().any()):
        return 1.0
    right = wide.gather(1, labels.long().cpu()[:, None])[:, 0]
    if bool(right.isinf().any()):
        return 1.0
    finite = wide.masked_fill(wide.isinf(), 0.0)  # such a class has a probability of 0, and adds nothing
    if not bool(finite.any()):
        return 1.0
    low, high = math.log(LOWEST), math.log(HIGHEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # The slope of the negative log-likelihood in 1/T: expected minus actual logit of the label. It rises with 1/T.
        expected = ((wide / math.exp(middle)).softmax(-1) * finite).sum(-1)
        too_sure = float((expected - right).mean()) > 0
        low, high = (middle, high) if too_sure else (low, middle)
    return math.exp((low + high) / 2)
