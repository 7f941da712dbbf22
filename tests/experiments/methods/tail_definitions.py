"""What methods over the last layers compute, for `test_definitions.py`."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from attentiondrop import AttentionDropError
from attentiondrop.experiments.config.schema import TrainingSettings
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.torch import attach, consistency_loss

from .conftest import batch


def tailhard(made) -> None:
    check(made, "tailhard(share=0.5,p=0.3,k=2,weight=0.5)", "hard(p=0.3,k=2,fill=-inf)")


def tailblur(made) -> None:
    check(made, "tailblur(share=0.5,sigma_max=3.0,weight=0.5)", "blur(sigma_max=3.0)")


def check(made, text: str, attached: str) -> None:
    """With a weight of 0.5, on the second of two blocks."""
    method, name = read_method(text), text.partition("(")[0]
    assert str(method.attached) == attached
    assert method.consistency == read_method("r-drop(weight=0.5)").consistency
    assert method.training(TrainingSettings()).consistency_mode == "shared"
    found = made(method.text)
    assert [site.name for site, _ in found.applied.attachment.rows()] == ["blocks.1.attn"]
    # The first block runs once, on one batch. The second one runs on both views.
    rows = []
    for block in found.model.blocks:
        block.attn.qkv.register_forward_hook(lambda module, args, out: rows.append(len(out)))
    loss = found.loss(mode="shared").item()
    assert rows == [8, 16]
    same = made("none")
    attach(same.model, {"blocks.1.attn": attached})
    torch.manual_seed(3)
    labels = batch().targets
    expected = consistency_loss(
        same.model.train(), batch().inputs, lambda x: F.cross_entropy(x, labels), method.consistency, "batch"
    )
    assert loss == pytest.approx(expected.loss.item(), rel=1e-5)
    assert len(made(f"{name}(share=0.01)").applied.attachment.rows()) == 1
    assert len(made(f"{name}(share=1.0)").applied.attachment.rows()) == 2
    for field, wrong in (("share", "a number in \\(0, 1\\], received 0.0"), ("weight", "a number >= 0")):
        with pytest.raises(AttentionDropError, match=f"{field}: expected {wrong}"):
            read_method(f"{name}({field}={0.0 if field == 'share' else -1})")


TAILS = {"tailhard": tailhard, "tailblur": tailblur}
