"""How a model of transformers computes its own loss, found out by plain passes over one batch.

Names of classes and signatures do not tell: `XLMWithLMHeadModel` is listed as a causal model and does not shift labels,
and `BertForSequenceClassification` takes the number of items and does not use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: The label that transformers' losses leave out.
IGNORED = -100


class Losses(NamedTuple):
    """Losses of the same batch, one for each process whose batch has labels."""

    #: The model's own one, a mean.
    own: Tensor
    #: The same with a large number of items to divide by; NaN if the model was not asked.
    divided: Tensor
    #: What the trainer computes with labels shifted as it expects, and the other way round; NaN where it cannot.
    expected: Tensor
    opposite: Tensor
    #: The relative error that the data type of the loss allows.
    tolerance: float

    def agree(self, other: Tensor) -> bool:
        """Whether other losses are the model's own ones."""
        return bool(torch.isclose(other, self.own, rtol=self.tolerance, atol=0.0).all())

    def fits(self) -> tuple[bool, bool]:
        """Whether the model's own loss is the expected and the opposite one."""
        return self.agree(self.expected), self.agree(self.opposite)


def measure(
    model: nn.Module,
    inputs: Mapping[str, Any],
    items: Tensor | int | None,
    ours: Callable[[Any, bool], Tensor],
    gather: Callable[[Tensor], Tensor],
) -> Losses | None:
    """The losses of one batch; None if the model returns none.

    Args:
        model: it runs in evaluation mode and without gradients, so that draws, rates and statistics stay as they are.
        inputs: those of a step, with labels.
        items: the number of items that the model gets in a step; None if it gets none.
        ours: the loss of the trainer for the model's output, with labels shifted as expected (True) or not (False).
        gather: collects a tensor from all processes. They must all come to the same conclusions.
    """
    with _plain_passes(model):
        output = model(**inputs)
        if not isinstance(output, Mapping) or output.get("loss") is None:
            return None
        own = output["loss"]
        row = [own, torch.full_like(own, torch.nan), ours(output, True), ours(output, False)]
        if items is not None:
            # More than there are: a loss that is divided by it is clearly smaller.
            many = torch.full_like(torch.as_tensor(items), 4 * inputs["labels"].numel())
            row[1] = model(**inputs, num_items_in_batch=many)["loss"]
    rows = gather(torch.stack([loss.float().mean().to(own.device) for loss in row])[None])
    # Without labels the loss is NaN or 0.
    mean, divided, expected, opposite = rows[rows[:, 0].isfinite() & (rows[:, 0] != 0)].unbind(dim=1)
    half = own.dtype in (torch.float16, torch.bfloat16)
    return Losses(mean, divided, expected, opposite, tolerance=1e-2 if half else 1e-4)


def one_label(labels: Tensor) -> Tensor:
    """Of labels [batch, ..., positions], only the first one that counts whether labels are shifted by one or not."""
    flat = F.pad(labels[..., 1:], (1, 0), value=IGNORED).flatten()
    place = (flat != IGNORED).nonzero()[:1]
    return torch.full_like(flat, IGNORED).index_put((place,), flat[place]).view_as(labels)


def takes_labels(model: nn.Module) -> bool:
    """Whether one may give labels to the model, which must not be wrapped."""
    parameters = inspect.signature(model.forward).parameters
    return "labels" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


@contextmanager
def _plain_passes(model: nn.Module) -> Iterator[None]:
    """Within, the model is in evaluation mode, and there are no gradients. Afterwards each module is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
