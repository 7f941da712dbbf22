"""Linear layers that drop weights."""

from __future__ import annotations

import pytest
import torch
import transformers
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

    def test_the_linear_layers_of_gpt2_drop_weights(self) -> None:
        """They are transformers' `Conv1D`. Only its head is an `nn.Linear`."""
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 9, "n_positions": 4, "bos_token_id": None}
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates, eos_token_id=None))
        tokens, keys = torch.arange(4)[None], list(model.state_dict())
        plain = model.eval()(tokens).logits
        assert drop_connections(model, 0.25) == 1 + 4  # the head; attention and MLP have two each
        assert list(model.state_dict()) == keys and torch.equal(model(tokens).logits, plain)
        layer, x = model.train().transformer.h[0].attn.c_attn, torch.eye(16)
        passes = torch.stack([layer(x) - layer.bias for _ in range(400)])
        assert (passes == 0).float().mean().item() == pytest.approx(0.25, abs=0.005)
        torch.testing.assert_close(passes.mean(0), layer.weight, rtol=0, atol=0.01)

    def test_a_model_without_linear_layers_is_refused(self) -> None:
        with pytest.raises(AttentionDropError, match=r"expected a model with nn\.Linear layers, received Conv2d"):
            drop_connections(nn.Conv2d(1, 1, 1), 0.1)
