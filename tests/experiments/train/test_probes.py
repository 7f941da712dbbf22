"""The measurements at some epochs of training."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.train.loop import initial_model
from attentiondrop.experiments.train.probes import attention_entropies, gradient_spread
from attentiondrop.torch import attach


class TestProbes:
    def test_gradient_spread_against_the_definition(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 2).double()
        batches = [(torch.randn(4, 3, dtype=torch.float64), torch.randint(2, (4,))) for _ in range(5)]

        def objective(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return nn.functional.cross_entropy(module(batch[0]), batch[1])

        rows = torch.stack(
            [
                torch.cat([g.flatten() for g in torch.autograd.grad(objective(model, batch), list(model.parameters()))])
                for batch in batches
            ]
        )
        variance, norm2 = gradient_spread(model, objective, batches)
        assert variance == pytest.approx(rows.var(0).sum().item(), rel=1e-5)
        assert norm2 == pytest.approx((rows.mean(0).square().sum() - rows.var(0).sum() / 5).item(), rel=1e-4)
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_a_batch_that_skips_a_parameter_counts_as_zero(self) -> None:
        """As where a layer is left out at random: its gradient is 0 in such a batch, and not unknown."""
        model = nn.Linear(1, 1, bias=False).double()
        gradients = [None, 3.0, None, 5.0]

        def objective(module: nn.Module, factor: float | None) -> torch.Tensor:
            used = nn.Parameter(torch.zeros(1, 1)) if factor is None else factor * module.get_parameter("weight")
            return used.sum()

        variance, norm2 = gradient_spread(model, objective, gradients)
        assert variance == pytest.approx(6.0) and norm2 == pytest.approx(4.0 - 6.0 / 4)

    def test_entropies_leave_the_model_as_it_was(self, tiny) -> None:
        model = initial_model(tiny, read_method("none"), 0, load_data(tiny.data)).train()
        images = torch.randn(8, 1, 8, 8)
        classes = [type(module) for module in model.modules()]
        before, after = attention_entropies(model, None, images)
        assert before == after and 0 < before <= math.log(17)
        assert [type(module) for module in model.modules()] == classes
        attachment = attach(model, "hard(p=0.5,k=3,fill=-inf)")
        same, perturbed = attention_entropies(model, attachment, images)
        # Later layers get the perturbed output of earlier ones.
        assert same == pytest.approx(before, rel=0.02) and perturbed < same
        assert attention_entropies(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), None, images) == (None, None)
