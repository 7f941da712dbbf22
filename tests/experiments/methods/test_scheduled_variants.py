"""The scheduled variants of DropKey and DropHead as methods: they are read, applied to a model, and driven."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attentiondrop.experiments.methods.apply import Applied
from attentiondrop.experiments.methods.grids import candidates
from attentiondrop.experiments.methods.parse import read_method


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


@pytest.mark.parametrize("compiled", [False, True])
def test_rates_of_the_layers(compiled: bool) -> None:
    applied = Applied(read_method("dropkey(p=depth(0.3,0.0))"), encoder(), compiled)
    assert applied.attachment is not None
    rates = [site["dropkey.p"] for site in applied.attachment.rates().values()]
    assert rates == pytest.approx([0.3, 0.15, 0.0])


@pytest.mark.parametrize("compiled", [False, True])
def test_rates_over_training(compiled: bool) -> None:
    model = encoder()
    applied = Applied(read_method("drophead(p=v_shape(0.2))+dropkey(p=0.1,by=column)"), model, compiled)
    assert applied.attachment is not None
    for progress, rate in ((0.0, 0.2), (0.1, 0.0), (0.55, 0.1)):
        applied.begin_step(progress)
        assert applied.attachment.rates()["layers.0.self_attn"]["drophead.p"] == pytest.approx(rate)
        model(torch.randn(2, 5, 16)).sum().backward()


def test_texts() -> None:
    """The canonical text names the fields. Tuning keeps a schedule that was given."""
    text = "dropkey(p=depth(first=0.3,last=0.0))"
    assert read_method("dropkey(p=depth(0.3,0.0))").text == text
    assert candidates("dropkey(p=depth(0.3,0.0))", 6, 0)[0] == text
    assert read_method("drophead(p=v_shape(0.2))").text == "drophead(p=v_shape(high=0.2,low=0.0,turn=0.1))"


def test_important_heads_are_part_of_the_state() -> None:
    model = encoder()
    applied = Applied(read_method("headmask(count=2,choice=important)"), model)
    model(torch.randn(2, 5, 16)).square().sum().backward()
    state = applied.state_dict()
    again = Applied(read_method("headmask(count=2,choice=important)"), encoder())
    again.load_state_dict(state)
    assert again.attachment is not None
    found = again.attachment.state_dict()["importance"]
    assert found.keys() == state["importance"].keys() == {f"layers.{layer}.self_attn.0" for layer in range(3)}
    assert all(torch.equal(found[name], state["importance"][name]) for name in found)
