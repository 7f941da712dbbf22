"""Modules with windows: what acts on heads must act on heads, whatever the order of the dimensions."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attach
from attentiondrop.torch.attach.head_places import HEADS, KNOWN, has_heads_first
from attentiondrop.torch.attach.sites import Site

timm = pytest.importorskip("timm")


class Windows(nn.Module):
    """Attention of so many heads in windows: [B, heads, windows, N, D], or with windows first."""

    def __init__(self, heads: int | None, heads_first: bool) -> None:
        super().__init__()
        self.num_heads, self.heads_first = heads, heads_first
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`x`: [B, heads, windows, N, D]."""
        if not self.heads_first:
            x = x.transpose(1, 2)
            mask = None if mask is None else mask.transpose(-3, -4)
        x = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        return x if self.heads_first else x.transpose(1, 2)


GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(2, 3, 4, 5, 8, generator=GENERATOR)
#: How many dimensions the mask has -> the mask.
MASKS = {0: None} | {
    len(shape): torch.rand(shape, generator=GENERATOR).round().bool() for shape in ((5, 5), (4, 5, 5), (2, 3, 1, 5, 5))
}


@pytest.mark.parametrize("spec", ["hard(p=0.5,k=2)", "blur(sigma_max=1.0)", "drophead(p=0.5)", "noise(sigma=0.5)"])
@pytest.mark.parametrize("dimensions", [0, 2, 5])
def test_both_orders_do_the_same(spec: str, dimensions: int) -> None:
    outputs, mask = [], MASKS[dimensions]
    for heads_first in (True, False):
        module = Windows(3, heads_first).train()
        attach(module, spec)
        torch.manual_seed(0)
        given = mask if mask is None or mask.dim() == 5 or heads_first else mask.expand(1, 1, 1, 5, 5)
        outputs.append(module(X, given))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("dimensions", MASKS)
def test_masks_with_fewer_dimensions_belong_to_the_same_windows(dimensions: int) -> None:
    module, mask = Windows(3, heads_first=True).train(), MASKS[dimensions]
    wanted = torch.nan_to_num(module(X, mask))
    attach(module, "hard(p=0.0,k=2)")
    torch.testing.assert_close(module(X, mask), wanted)


def test_queries_that_do_not_tell_stay_as_they_are() -> None:
    """A module that does not say how many heads it has: heads are dimension -3, as for `attention`."""
    module = Windows(None, heads_first=True)
    attachment = attach(module, "hard")
    attachment.watch()
    module.train()(X)
    (stats,) = attachment.stats().values()
    assert len(stats.entropy_after) == 4


@pytest.mark.parametrize(
    ("heads", "known", "shape", "first"),
    [
        (3, False, (2, 3, 4, 5, 8), True),
        (3, False, (2, 4, 3, 5, 8), False),
        (4, False, (2, 4, 4, 5, 8), False),  # the shape does not tell
        (4, True, (2, 4, 4, 5, 8), True),
        (7, True, (2, 3, 4, 5, 8), False),
        (3, True, (2, 3, 5, 8), False),
        (3, True, (2, 3, 4, 2, 5, 8), False),
    ],
)
def test_where_the_heads_are(heads: int, known: bool, shape: tuple[int, ...], first: bool) -> None:
    site = Site("", ad.HardMasking(), "auto", "sdpa", extra={HEADS: heads, KNOWN: known})
    assert has_heads_first(site, torch.empty(shape)) is first


def small(name: str) -> nn.Module:
    if name == "hiera":
        return timm.create_model("hiera_tiny_224", img_size=64, embed_dim=32, num_heads=1, stages=(1, 1, 1, 1))
    from timm.models.nest import Nest

    # 16, 4 and 1 windows: the second level has as many windows as heads.
    return Nest(img_size=64, embed_dims=(16, 32, 64), num_heads=(2, 4, 16), depths=(1, 1, 1), num_classes=5)


@pytest.mark.parametrize("name", ["hiera", "nest"])
def test_statistics_of_timm_have_its_heads(name: str) -> None:
    model = small(name).train()
    attachment = attach(model, "blur")
    attachment.watch()
    model(torch.randn(1, 3, 64, 64))
    for site in attachment.sites:
        module = model.get_submodule(site.name)
        heads = getattr(module, "num_heads", None) or module.heads
        assert site.extra[HEADS] == heads and site.extra[KNOWN]
        assert len(attachment.stats()[site.name].entropy_after) == heads


def test_a_subclass_of_timm_puts_heads_first_too() -> None:
    from timm.models.hiera import MaskUnitAttention

    class Mine(MaskUnitAttention):
        pass

    module = Mine(16, 16, heads=4, window_size=4, use_mask_unit_attn=True)
    assert attach(module, "drophead(p=0.5)").sites[0].extra[KNOWN]


def test_the_output_is_laid_out_as_that_of_sdpa() -> None:
    """Modules that merge windows with `view` need it."""
    module = Windows(3, heads_first=True).train()
    assert module(X).is_contiguous()
    attach(module, "hard(p=0.0,k=2)")
    assert module(X).is_contiguous()


def test_one_head_of_hiera_cannot_be_dropped() -> None:
    model = small("hiera").train()
    first = model.blocks[0].attn
    seen: list[Tensor] = []
    first.proj.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with attach(model, {"blocks.0.attn": "drophead(p=0.5)"}), pytest.warns(ad.AttentionDropWarning, match="one head"):
        model(torch.randn(2, 3, 64, 64))
    assert not (seen[0] == 0).all(-1).any()


def test_what_a_site_knows_survives_copies_and_old_pickles() -> None:
    module = Windows(3, heads_first=True).train()
    attachment = attach(module, "drophead(p=0.5)")
    torch.manual_seed(0)
    wanted = module(X)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.manual_seed(0)
        assert torch.equal(twin(X), wanted)
    attachment.sites[0].extra.clear()  # a pickle of an older version
    assert module(X).shape == X.shape
