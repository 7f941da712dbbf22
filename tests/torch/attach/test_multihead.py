"""`nn.MultiheadAttention`, `nn.Transformer*` and torchvision, which builds on them."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from checks import check_compiled, check_model, first_tensor, randomise
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attentiondrop as ad
from attentiondrop.torch import attach

NOTHING = ad.HardMasking(p=0.0)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"kdim": 6, "vdim": 5}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True, "add_bias_kv": True}],
    ids=str,
)
def test_rate_zero_equals_torch(options: dict[str, Any], need_weights: bool, batch_first: bool) -> None:
    """With nothing dropped, our training forward is torch's: all masks, batched or not, outputs, weights, gradients."""
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first, dtype=torch.float64, **options)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    paddings = [None, torch.tensor([[False] * 5, [False, False, True, False, True]]), normal(2, 5)]
    causal = torch.ones(4, 5).triu(1).bool()
    masks = [None, causal, normal(4, 5), (normal(4, 4, 5) > 1), normal(4, 4, 5)]
    for (padding, mask), batched in itertools.product(itertools.product(paddings, masks), (True, False)):
        q, k, v = normal(4, 2, 8), normal(5, 2, options.get("kdim", 8)), normal(5, 2, options.get("vdim", 8))
        if not batched:
            q, k, v = q[:, 0], k[:, 0], v[:, 0]
            padding = None if padding is None else padding[1]
            mask = mask[:2] if mask is not None and mask.ndim == 3 else mask
        elif batch_first:
            q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        for average in (True, False) if need_weights else (True,):
            arguments = {
                "key_padding_mask": padding,
                "attn_mask": mask,
                "need_weights": need_weights,
                "average_attn_weights": average,
                "is_causal": mask is causal,
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # torch on mixed mask dtypes
                expected, expected_weights = layer(q, k, v, **arguments)
            with attach(layer, NOTHING):
                output, weights = layer(q, k, v, **arguments)
            torch.testing.assert_close(output, expected)
            torch.testing.assert_close(weights, expected_weights)
            parameters = list(layer.parameters())
            for have, want in zip(
                torch.autograd.grad(output.sin().sum(), parameters),
                torch.autograd.grad(expected.sin().sum(), parameters),
                strict=True,
            ):
                torch.testing.assert_close(have, want)


def test_dropout_of_the_layer_stays_on() -> None:
    layer = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = torch.randn(1, 6, 8)
    with attach(layer, NOTHING):
        _, weights = layer(x, x, x, average_attn_weights=False)
    assert (weights == 0).any()


def test_returned_weights_are_the_perturbed_ones() -> None:
    layer = randomise(nn.MultiheadAttention(8, 2, batch_first=True), 3.0)
    x = torch.randn(1, 6, 8)
    with attach(layer, ad.HardMasking(p=0.5, k=6, fill="-inf")):
        _, weights = layer(x, x, x, average_attn_weights=False)
    assert (weights == 0).any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 6))


def test_is_causal_needs_a_mask_as_in_torch() -> None:
    layer = nn.MultiheadAttention(8, 2)
    x = torch.randn(6, 1, 8)
    with attach(layer, "hard"), pytest.raises(RuntimeError, match="Need attn_mask"):
        layer(x, x, x, is_causal=True)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(
    ("batches", "masks", "named"),
    [
        ((2, 2, 2), {"attn_mask": (1, 5)}, "attn_mask: expected the shape [6, 5] or [4, 6, 5]"),
        ((2, 2, 2), {"attn_mask": (6, 1)}, "attn_mask"),
        ((2, 2, 2), {"attn_mask": (2, 6, 5)}, "attn_mask"),
        ((2, 2, 2), {"key_padding_mask": (1, 5)}, "key_padding_mask: expected the shape [2, 5], received [1, 5]"),
        ((0, 0, 0), {"key_padding_mask": (1, 5)}, "key_padding_mask: expected the shape [5], received [1, 5]"),
        ((2, 1, 1), {}, "key: expected the batch of the query, 2, received 1"),
        ((1, 2, 2), {}, "key"),
        ((2, 2, 1), {}, "value"),
    ],
    ids=str,
)
def test_shapes_that_torch_refuses_are_refused(
    batches: tuple[int, ...], masks: dict[str, tuple[int, ...]], named: str, batch_first: bool
) -> None:
    """It broadcasts no batch and no mask. A wrong mask must not train a model that cannot be evaluated."""
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    parts = [torch.randn(batch or 1, tokens, 8) for batch, tokens in zip(batches, (6, 5, 5), strict=True)]
    parts = parts if batch_first else [x.transpose(0, 1) for x in parts]
    if batches[0] == 0:  # without a batch
        parts = [x.squeeze(0 if batch_first else 1) for x in parts]
    given = {name: torch.zeros(shape, dtype=torch.bool) for name, shape in masks.items()}
    with pytest.raises((RuntimeError, AssertionError)):
        layer(*parts, **given)
    with attach(layer, NOTHING), pytest.raises(ad.errors.ShapeError) as error:
        layer(*parts, **given)
    assert named in str(error.value)


class Checkpointed(nn.Module):
    """Run every layer of an encoder under activation checkpointing."""

    def __init__(self, encoder: nn.TransformerEncoder, reentrant: bool) -> None:
        super().__init__()
        self.encoder, self.reentrant = encoder, reentrant

    def forward(self, x: Tensor, **masks: Any) -> Tensor:
        for layer in self.encoder.layers:
            x = checkpoint(lambda y, layer=layer: layer(y, **masks), x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_transformer_encoder(norm_first: bool, padded: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    model = randomise(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    x = torch.randn(2, 7, 16)
    padding = torch.tensor([[False] * 7, [False] * 5 + [True] * 2]) if padded else None
    check_model(model, lambda m: m(x, src_key_padding_mask=padding), 3, None)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_under_checkpointing(reentrant: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = randomise(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    x = torch.randn(2, 7, 16, requires_grad=True)
    for spec in ("hard(p=0.4,k=3)", "blur(sigma_max=1.5)", "noise(sigma=0.5)"):
        with attach(model, spec):
            results = []
            for module in (model, Checkpointed(model, reentrant)):
                torch.manual_seed(1)
                results.append(
                    torch.autograd.grad(module(x).square().sum(), [x], allow_unused=False)[0]
                    if not reentrant
                    else _backward(module, x)
                )
            assert torch.equal(*results)


def _backward(module: nn.Module, x: Tensor) -> Tensor:
    """Reentrant checkpointing allows only a plain backward."""
    x.grad = None
    module(x).square().sum().backward()
    assert x.grad is not None
    return x.grad.clone()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_transformer_with_cross_attention(compiled: bool) -> None:
    model = randomise(nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True))
    source, target = torch.randn(2, 7, 16), torch.randn(2, 5, 16)
    future = nn.Transformer.generate_square_subsequent_mask(5)
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    hidden = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}

    def run(m: nn.Module) -> Tensor:
        return first_tensor(m(source, target, tgt_mask=future, tgt_is_causal=True, **hidden))

    if compiled:
        check_compiled(model, run, "aot_eager")
    else:
        check_model(model, run, 6, None)


def test_padding_is_masked_in_training() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = randomise(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    padding = torch.tensor([[False] * 7, [False] * 5 + [True] * 2])
    x = torch.randn(2, 7, 16)
    other = x.clone()
    other[1, 5:] = 100.0
    for spec in ("hard(p=0.4,k=3)", "blur(sigma_max=1.5)", "blur(edges=renormalize)", "dropkey(p=0.3)"):
        with attach(model, spec):
            outputs = []
            for data in (x, other):
                torch.manual_seed(1)
                outputs.append(model(data, src_key_padding_mask=padding)[~padding])
            assert torch.equal(*outputs)


def small_vision_transformer(layers: int) -> nn.Module:
    """The class behind torchvision's `vit_b_16` and the like, with random weights."""
    torchvision = pytest.importorskip("torchvision")
    return randomise(torchvision.models.VisionTransformer(32, 8, layers, 4, 32, 64, num_classes=5))


@pytest.mark.no_cover
def test_torchvision_vit_compiled() -> None:
    model, images = small_vision_transformer(layers=1).requires_grad_(False), torch.randn(2, 3, 32, 32)
    check_compiled(model, lambda m: m(images), "aot_eager")


def test_torchvision_vit() -> None:
    images = torch.randn(2, 3, 32, 32)
    check_model(small_vision_transformer(layers=3), lambda m: m(images), 3, None)


def test_torchvision_vit_b_16_is_found() -> None:
    torchvision = pytest.importorskip("torchvision")
    with torch.device("meta"):
        model = torchvision.models.vit_b_16(image_size=64)
    assert len(attach(model, "hard").sites) == 12


def test_torchvision_swin_is_reported() -> None:
    torchvision = pytest.importorskip("torchvision")
    with torch.device("meta"):
        model = torchvision.models.swin_t()
    with pytest.raises(ad.AttachError, match="12 x ShiftedWindowAttention  it computes its softmax itself"):
        attach(model, "hard")


def test_weights_and_fused_do_not_go_together() -> None:
    """None instead of the weights would be a surprise later."""
    module, x = nn.MultiheadAttention(16, 2, batch_first=True).train(), torch.randn(2, 5, 16)
    attach(module, "hard(p=0.5,k=2)", backend="fused")
    with pytest.raises(ad.BackendError, match='the model: backend="fused" cannot run here: the attention weights are'):
        module(x, x, x)
    # A layer that calls its attention so and throws the weights away can be left out.
    layers = nn.ModuleList([nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2)]).train()
    with attach(layers, {"0": None, "*": "hard(p=0.5,k=2)"}, backend="fused"):
        layers[1](*[layers[0](x, x, x)[0]] * 3, need_weights=False)
    assert module(x, x, x, need_weights=False)[0].shape == x.shape
    assert module.eval()(x, x, x)[1].shape == (2, 5, 5)
