"""timm models: SDPA inside, explicit softmax inside, both, and neither."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from checks import check_compiled, check_model, randomise
from torch import nn

import attentiondrop as ad
from attentiondrop.torch import attach

timm = pytest.importorskip("timm")

SMALL = {"num_classes": 5}
#: name, arguments, image size, sites
MODELS = {
    "vit": ("vit_tiny_patch16_224", {"img_size": 48, "depth": 3}, 48, 3),
    "deit": ("deit_tiny_distilled_patch16_224", {"img_size": 48, "depth": 2}, 48, 2),
    "eva02": ("eva02_tiny_patch14_224", {"img_size": 42, "depth": 2}, 42, 2),
    "beit": ("beit_base_patch16_224", {"img_size": 48, "depth": 2, "embed_dim": 48, "num_heads": 3}, 48, 2),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)},
        56,
        4,
    ),
    "cait": ("cait_xxs24_224", {"img_size": 48, "depth": 2}, 48, 2),
    "maxvit": ("maxvit", {}, 32, 4),
    "siglip": (
        "vit_base_patch16_siglip_224",
        {"img_size": 48, "depth": 1, "embed_dim": 48, "num_heads": 3, "num_classes": 0},
        48,
        2,
    ),
    "twins": ("twins_svt_small", {"img_size": 64, "depths": (2, 2, 2, 2)}, 64, 8),
    "hiera": ("hiera_tiny_224", {"img_size": 64, "embed_dim": 32, "num_heads": 1, "stages": (1, 1, 1, 1)}, 64, 4),
}


@pytest.fixture(autouse=True)
def quiet_about_unreached() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ad.AttentionDropWarning)
        yield


def tiny_maxvit() -> nn.Module:
    """The smallest that timm registers has 22 sites and takes minutes to compile."""
    from timm.models.maxxvit import MaxxVit, MaxxVitCfg, MaxxVitTransformerCfg

    attention = MaxxVitTransformerCfg(dim_head=8, window_size=(4, 4), grid_size=(4, 4))
    shape = {"embed_dim": (16, 32), "depths": (1, 1), "block_type": ("M", "M"), "stem_width": 8}
    return MaxxVit(MaxxVitCfg(**shape, transformer_cfg=attention), img_size=32, **SMALL)


def build(key: str) -> tuple[nn.Module, torch.Tensor, int]:
    name, options, size, sites = MODELS[key]
    torch.manual_seed(0)
    model = tiny_maxvit() if name == "maxvit" else timm.create_model(name, **(SMALL | options), drop_path_rate=0.0)
    return randomise(model), torch.randn(2, 3, size, size), sites


@pytest.mark.parametrize("key", MODELS)
def test_promises(key: str) -> None:
    model, images, sites = build(key)

    def checkpointing(copy: nn.Module) -> None:
        copy.set_grad_checkpointing(True)

    # maxvit: BatchNorm would update its statistics twice; twins: timm has no checkpointing for it.
    no_checkpointing = key in ("maxvit", "twins")
    check_model(model, lambda m: m(images), sites, None if no_checkpointing else checkpointing)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "key",
    [
        "vit",
        *(pytest.param(key, marks=pytest.mark.slow) for key in ("deit", "eva02", "beit", "swin", "cait", "maxvit")),
    ],
)
def test_compiled_equals_eager(key: str) -> None:
    model, images, _ = build(key)
    if key == "vit":
        del model.blocks[1:]  # one block shows it, in a third of the time
    model.requires_grad_(False)  # the forward decides; gradients of compiled models are tested in test_compiled_life.py
    check_compiled(model, lambda m: m(images), "aot_eager")


@pytest.mark.parametrize(
    "spec", [ad.BlurSmoothing(1.0), ad.DropHead(0.4), ad.GaussianNoise(0.5), ad.AttentionDropout(0.3)], ids=str
)
@pytest.mark.parametrize("key", ["vit", "swin"])
def test_other_regularisers(key: str, spec: ad.Spec) -> None:
    model, images, sites = build(key)
    check_model(model, lambda m: m(images), sites, lambda m: m.set_grad_checkpointing(True), spec)


def test_swin_keeps_its_own_attention_in_evaluation() -> None:
    """timm's switch to SDPA is on in training only, and setting it still works."""
    model, _, _ = build("swin")
    layer = model.layers[0].blocks[0].attn
    assert layer.fused_attn is False
    with attach(model, "hard"):
        assert layer.train().fused_attn is True
        assert layer.eval().fused_attn is False
        layer.fused_attn = True
        assert layer.eval().fused_attn is True
        layer.fused_attn = False
    assert layer.fused_attn is False and "fused_attn" in vars(layer)


def test_what_cannot_be_reached_is_said() -> None:
    model, _, _ = build("cait")
    warnings.simplefilter("always", ad.AttentionDropWarning)
    with pytest.warns(ad.AttentionDropWarning, match="2 attention modules of Cait could not be reached"):
        attachment = attach(model, "hard")
    assert [entry.name for entry in attachment.unreached] == ["blocks.0.attn", "blocks.1.attn"]
    assert "not reached: 2\n  blocks.*.attn  2 x TalkingHeadAttn  it computes its softmax itself" in str(attachment)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("swinv2_tiny_window8_256", "12 x WindowAttention  it computes its softmax itself"),
        ("mvitv2_tiny", "MultiScaleAttention  it computes its softmax itself"),
        ("levit_128s", "Attention            it computes its softmax itself"),
        ("convit_tiny", "GPSA  it computes its softmax itself"),
        ("resnet18", "nothing in it calls scaled_dot_product_attention"),
    ],
)
def test_nothing_reached_is_an_error(name: str, reason: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    with pytest.raises(ad.AttachError, match="found no attention in") as error:
        attach(model, ad.HardMasking())
    assert reason in str(error.value)


def test_attention_over_channels_is_left_out() -> None:
    with torch.device("meta"):
        xcit, davit = timm.create_model("xcit_nano_12_p16_224"), timm.create_model("davit_tiny")
    for model in (xcit, davit):
        reasons = {entry.reason for entry in attach(model, "hard").unreached}
        assert reasons == {"it attends over channels, not over tokens"}


@pytest.mark.parametrize(
    ("name", "options"), [("samvit_base_patch16", {"embed_dim": 32}), ("vit_tiny_patch16_224", {})]
)
def test_drophead_says_that_one_head_is_always_kept(name: str, options: dict[str, int]) -> None:
    """timm's SAM folds its heads into the batch, so that they cannot be told apart."""
    heads = 4 if name == "samvit_base_patch16" else 1
    model = timm.create_model(name, img_size=32, depth=1, num_heads=heads, **options, **SMALL).train()
    attach(model, "drophead(p=0.4)")
    warnings.simplefilter("always", ad.AttentionDropWarning)
    with pytest.warns(ad.AttentionDropWarning, match=r"blocks.0.attn: drophead has no effect, because .* one head"):
        model(torch.randn(1, 3, 32, 32))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ad.AttentionDropWarning)
        model(torch.randn(1, 3, 32, 32))
