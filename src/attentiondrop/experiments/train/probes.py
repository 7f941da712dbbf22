"""Measurements at some epochs of training: the variance of mini-batch gradients and the entropy of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean

import torch
from torch import Tensor, nn

from ...errors import AttachError
from ...specs import HardMasking
from ...torch import Attachment, attach
from ..tasks.interface import Batch, forward

Objective = Callable[[nn.Module, Batch], Tensor]


#: How many samples of a batch, and rows of their attention, are measured.
_SAMPLES, _ROWS = 16, 16


def probe_epochs(epochs: int, probes: int) -> set[int]:
    """The epochs after which to measure, counted from one: the first, the last, and some in between.

    >>> sorted(probe_epochs(20, 5))
    [1, 6, 11, 15, 20]
    """
    if probes == 0:
        return set()
    if probes == 1:
        return {epochs}
    return {1 + round(index * (epochs - 1) / (probes - 1)) for index in range(probes)}


def gradient_spread(model: nn.Module, objective: Objective, batches: Iterable[Batch]) -> tuple[float, float]:
    """The trace of the covariance of a mini-batch gradient, and the squared norm of the mean gradient.

    Both estimates are unbiased: the squared norm of the average over B batches is corrected by the trace divided by B.
    Mini-batches and draws both vary. The `.grad` of the parameters is not touched.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    mean = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
    # Welford's update needs one pass and avoids differences of large sums.
    spread, count = torch.zeros((), device=parameters[0].device), 0
    for batch in batches:
        # A parameter that a batch does not use, as where a layer is skipped at random, has a gradient of zero there.
        gradients = torch.autograd.grad(objective(model, batch), parameters, allow_unused=True, materialize_grads=True)
        count += 1
        for average, gradient in zip(mean, gradients, strict=True):
            before = gradient.float() - average
            average += before / count
            spread += (before * (gradient.float() - average)).sum()
    variance = spread / (count - 1)
    norm2 = torch.stack([average.square().sum() for average in mean]).sum() - variance / count
    return variance.item(), norm2.item()


@torch.no_grad()
def attention_entropies(
    model: nn.Module, attachment: Attachment | None, inputs: Tensor
) -> tuple[float, float] | tuple[None, None]:
    """Mean entropy of attention rows in nats, over layers and heads: before and after the method changes them.

    None if the attention of the model cannot be reached.
    """
    # If no spec is attached, attach one that drops nothing, to watch the attention.
    try:
        watched = attach(model, HardMasking(p=0.0, k=1)) if attachment is None else attachment
    except AttachError:
        return None, None
    state, monitors = watched.state_dict(), [site.monitor for site in watched.sites]
    try:
        watched.watch(rows=_ROWS, samples=_SAMPLES)
        forward(model.forward, inputs)  # not the compiled model: watching would compile it again
        found = list(watched.stats().values())
    finally:
        # Rates that adapt have watched too. All of it goes on as it was: a captured step refers to it.
        for site, monitor in zip(watched.sites, monitors, strict=True):
            site.monitor = monitor
        watched.load_state_dict(state)
        if attachment is None:
            watched.remove()
    before = fmean(value for site in found for value in site.entropy_before)
    after = fmean(value for site in found for value in site.entropy_after)
    return before, after
