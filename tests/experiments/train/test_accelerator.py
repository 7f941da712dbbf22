"""What the Accelerator does to a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attentiondrop.experiments.config.schema import TrainingSettings
from attentiondrop.experiments.train.accelerator import make_accelerator, prepare
from attentiondrop.experiments.train.compiled_code import compile_calls


def outputs(narrow: bool, precision: str, change=lambda model: None) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Linear(4, 6)
    change(model)
    settings = TrainingSettings(precision=precision, device="cpu")
    made = make_accelerator(settings)
    wrapped, _ = prepare(made, model, torch.optim.SGD(model.parameters(), 0.1), narrow)
    return wrapped(torch.linspace(-1.0, 1.0, 8).view(2, 4))


def forward_in_an_attribute(model: nn.Module) -> None:
    plain = model.forward
    model.forward = lambda x: plain(x)  # no bound method, as libraries leave behind


@pytest.mark.parametrize("change", [lambda model: None, compile_calls, forward_in_an_attribute])
def test_narrow_outputs_keep_the_precision_of_the_model(change) -> None:
    """The copy in float32 would be the largest tensor of a step. Its values are the same."""
    narrow, wide = outputs(True, "bfloat16", change), outputs(False, "bfloat16", change)
    assert (narrow.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(narrow.float(), wide)


def test_without_a_lower_precision_nothing_is_unwrapped() -> None:
    assert torch.equal(outputs(True, "float32"), outputs(False, "float32"))
