"""Linear layers that drop weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attentiondrop import AttentionDropError
from attentiondrop.experiments.methods.dropconnect_layers import DropConnectLinear, drop_connections


class TestDropConnect:
    def test_a_new_mask_in_every_pass_and_the_expectation_kept(self) -> None:
        torch.manual_seed(0)
        layer = nn.Linear(64, 64)
        plain, x = layer(torch.eye(64)).detach(), torch.eye(64)
        keys = list(layer.state_dict())
        assert drop_connections(layer, 0.25) == 1
        assert list(layer.state_dict()) == keys
        passes = torch.stack([layer(x) for _ in range(400)])
        weights = passes - layer.bias
        assert (weights == 0).float().mean().item() == pytest.approx(0.25, abs=0.005)
        # All inputs of a batch get the same mask, so the identity matrix as input gives the masked weights.
        torch.testing.assert_close(passes.mean(0), plain, rtol=0, atol=0.05)
        assert not torch.equal(passes[0], passes[1])
        assert torch.equal(layer.eval()(x), plain)
        assert isinstance(layer, DropConnectLinear)

    def test_a_model_without_linear_layers_is_refused(self) -> None:
        with pytest.raises(AttentionDropError, match=r"expected a model with nn\.Linear layers, received Conv2d"):
            drop_connections(nn.Conv2d(1, 1, 1), 0.1)
