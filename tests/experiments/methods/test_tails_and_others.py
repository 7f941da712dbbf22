"""A perturbation of the last layers beside others: each acts where it acts alone, and the cost follows."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from attentiondrop.experiments.methods.apply import Applied
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.methods.passes import passes
from attentiondrop.torch import attach, consistency_loss

from .conftest import batch, vit

BLUR, HARD = "blur(sigma_max=2.0)", "hard(p=0.3,k=2)"


def attached(text: str, compiled: bool = False) -> list[str]:
    """What the attention of each of four blocks gets; empty for nothing."""
    model = vit(depth=4)
    rows = {site.name: str(site.spec) for site, _ in Applied(read_method(text), model, compiled).attachment.rows()}
    return [rows.get(f"blocks.{block}.attn", "") for block in range(4)]


@pytest.mark.parametrize(
    ("share", "first"),
    [(0.25, 3), (0.5, 2), (0.75, 1), (1.0, 0)],
)
def test_another_spec_still_acts_on_all_layers(share: float, first: int) -> None:
    both = f"{BLUR}+{HARD}"
    assert attached(f"tailblur(share={share})+{HARD}") == [HARD] * first + [both] * (4 - first)
    assert attached(f"tailblur(share={share})") == [""] * first + [BLUR] * (4 - first)
    assert attached(f"tailblur(share={share})+dropout(p=0.2)") == [""] * first + [BLUR] * (4 - first)


def test_several_others_do_too_and_so_do_rates_in_tensors() -> None:
    found = attached("tailblur(share=0.5)+hard(p=0.3,k=2)+dropkey(p=0.2)", compiled=True)
    assert ["blur" in each for each in found] == [False, False, True, True]
    assert all("hard(" in each and "dropkey(" in each for each in found)


def test_a_rate_that_changes_with_depth_counts_all_layers() -> None:
    applied = Applied(read_method("tailblur(share=0.5)+dropkey(p=depth(first=0.0,last=0.3))"), vit(depth=4))
    rates = [list(spec.leaves())[-1].p for spec in applied.attachment.specs().values()]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_passes_are_those_of_the_layers_that_are_perturbed() -> None:
    expected = {
        "tailblur(share=0.25)": 1.25,
        "tailblur(share=0.25)+dropout": 1.25,
        "tailblur(share=0.25)+hard": 2.0,
        "tailhard(share=0.25)+longer(times=2)": 2.5,
        "hard": 1.0,
        "hard+consistency": 2.0,
        "r-drop": 2.0,
        "hiddenkey": 2.0,
    }
    assert {text: passes(read_method(text)) for text in expected} == expected


def test_the_loss_is_that_of_both_where_they_act(made) -> None:
    found = made(f"tailblur(share=0.5,weight=0.5)+{HARD}")
    # The views part before the first block, since masking differs there already.
    rows = []
    for block in found.model.blocks:
        block.attn.qkv.register_forward_hook(lambda module, args, out: rows.append(len(out)))
    loss = found.loss(mode="shared").item()
    assert rows == [16, 16]
    same, labels = vit().train(), batch().targets
    attach(same, {"blocks.0.attn": HARD, "blocks.1.attn": f"{BLUR}+{HARD}"})
    torch.manual_seed(3)
    expected = consistency_loss(
        same, batch().inputs, lambda x: F.cross_entropy(x, labels), found.method.consistency, "batch"
    )
    assert loss == pytest.approx(expected.loss.item(), rel=1e-5)
