"""`AttentionDrop`: logits in, weights out."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from parity import LogitShape, numpy_draws, relative_error, to_numpy
from torch import nn

import attentiondrop as ad
from attentiondrop import reference
from attentiondrop.specs import Spec
from attentiondrop.torch import AttentionDrop

SPECS: list[Spec] = [
    ad.HardMasking(p=0.4, k=3),
    ad.HardMasking(p=0.4, k=3, fill="-inf"),
    ad.BlurSmoothing(1.5),
    ad.BlurSmoothing(1.5, edges="renormalize", sampling="sample"),
    ad.GaussianNoise(0.5),
    ad.DropKey(0.4),
    ad.DropHead(0.4),
    ad.AttentionDropout(0.4),
    ad.Compose([ad.DropKey(0.2), ad.BlurSmoothing(1.0), ad.DropHead(0.2)]),
    ad.OneOf([ad.DropKey(0.2), ad.BlurSmoothing(1.0)]),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_weights_match_the_oracle(spec: Spec) -> None:
    drop = AttentionDrop(spec)
    shape = LogitShape(2, 4, 6, 7)
    for causal in (False, True):
        for mask in (None, torch.rand(2, 1, 1, 7) < 0.7, torch.rand(6, 7) < 0.7, torch.randn(4, 6, 7).double()):
            for dtype, bound in ((torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2**-8)):
                logits = torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()
                torch.manual_seed(4)
                weights = drop(logits, mask, is_causal=causal)
                assert weights.dtype == dtype
                draws, _ = numpy_draws(spec, 4, shape)
                # Logits as q @ k with k the identity, values the identity: the output is the weights.
                identity = torch.eye(7).expand(2, 4, 7, 7).numpy()
                result = reference.attention(
                    to_numpy(logits),
                    identity,
                    identity,
                    spec,
                    draws,
                    attn_mask=None if mask is None else to_numpy(mask),
                    is_causal=causal,
                    scale=1.0,
                )
                assert relative_error(to_numpy(weights), result.weights) <= bound


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_logits_that_are_masked_already_stay_masked(spec: Spec, hidden: float) -> None:
    """Hand-written layers fill the logits before the softmax. A dropped or blurred logit must not show a hidden key."""
    drop, logits = AttentionDrop(spec), torch.randn(2, 4, 6, 6)
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    filled = logits.masked_fill(future, hidden).requires_grad_()
    torch.manual_seed(4)
    weights = drop(filled)
    torch.manual_seed(4)
    torch.testing.assert_close(weights, drop(logits, ~future))
    assert not weights[..., future].any()
    weights.square().sum().backward()
    assert filled.grad.isfinite().all() and not filled.grad[..., future].any()
    assert torch.equal(drop.eval()(filled), filled.softmax(-1))


def test_a_blur_along_both_axes_sees_what_logits_hide() -> None:
    drop = AttentionDrop(ad.BlurSmoothing(1.0, sigma_min=1.0, axes="both"))
    logits, keys = torch.randn(2, 4, 6, 7), torch.rand(2, 1, 1, 7) < 0.7
    for hidden in (-torch.inf, torch.finfo(torch.float32).min):
        masked = logits.masked_fill(~keys, hidden)
        torch.testing.assert_close(drop(masked), drop(logits, keys))
        torch.testing.assert_close(torch.func.vmap(drop, randomness="same")(masked[None])[0], drop(logits, keys))
        causal = logits.masked_fill(torch.ones(6, 7).triu(1).bool(), hidden)
        with pytest.raises(ad.ArgumentError, match='axes: expected "keys" under logits that hide different keys'):
            drop(causal)
        # No values can be read there.
        assert torch.func.vmap(drop, randomness="same")(causal[None]).isnan().all()
        assert drop(causal.to("meta")).shape == logits.shape
    drop.eval()
    torch.testing.assert_close(drop(causal), causal.softmax(-1))
    assert not drop(torch.full_like(logits, -torch.inf)).any()


@pytest.mark.parametrize("shape", [(2, 3, 0, 5), (2, 3, 4, 0), (0, 3, 4, 5), (2, 2, 3, 0, 5), (2, 0, 5)], ids=str)
def test_logits_without_numbers(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, requires_grad=True)
    for spec in ("hard(p=0.5,k=2)", "blur(sigma_max=1.0)", "dropkey(p=0.5,by=column)"):
        weights = AttentionDrop(spec)(logits)
        weights.sum().backward()
        assert weights.shape == logits.grad.shape == logits.shape


def test_integers_are_no_logits() -> None:
    with pytest.raises(ad.AttentionDropError, match=r"logits: expected a floating-point tensor, received torch.int64"):
        AttentionDrop("hard")(torch.ones(2, 4, 6, 6, dtype=torch.int64))


def test_evaluation_is_a_plain_softmax() -> None:
    logits = torch.randn(2, 4, 6, 7)
    drop = AttentionDrop("hard(p=0.4,k=3)+drophead(p=0.4)").eval()
    state = torch.get_rng_state()
    assert torch.equal(drop(logits), logits.softmax(-1))
    assert torch.equal(torch.get_rng_state(), state), "evaluation consumed random numbers"
    mask = torch.rand(6, 7) < 0.5
    mask[2] = False
    weights = drop(logits, mask)
    assert not weights[:, :, 2].any() and not weights.masked_select(~mask).any()


def test_it_has_no_state_and_survives_copies() -> None:
    drop = AttentionDrop(ad.BlurSmoothing(1.0))
    assert not list(drop.parameters()) and not drop.state_dict()
    assert repr(drop) == "AttentionDrop(blur(sigma_max=1.0))"
    logits = torch.randn(2, 4, 6, 7)
    for other in (copy.deepcopy(drop), pickle.loads(pickle.dumps(drop))):
        torch.manual_seed(1)
        expected = drop(logits)
        torch.manual_seed(1)
        assert torch.equal(other(logits), expected)


def test_copies_of_a_layer_share_its_generator() -> None:
    """`nn.TransformerEncoder` and others copy one layer: with a copy of the generator, all would draw alike."""
    drop = AttentionDrop("dropkey(p=0.5)", generator=torch.Generator().manual_seed(0))
    layers = [copy.deepcopy(nn.ModuleList([drop])) for _ in range(3)]
    logits = torch.randn(2, 4, 6, 7)
    first, second, third = (layer[0](logits) for layer in layers)
    assert not torch.equal(first, second) and not torch.equal(second, third)
    assert layers[0][0] is not drop and layers[0][0].generator is drop.generator
    drop.generator.manual_seed(0)
    assert torch.equal(layers[2][0](logits), first)


def test_other_numbers_of_dimensions() -> None:
    logits = torch.randn(3, 2, 4, 6, 7)
    drop = AttentionDrop("hard(p=0.4,k=3)")
    torch.manual_seed(1)
    whole = drop(logits, torch.ones(3, 1, 1, 1, 7, dtype=torch.bool))
    torch.manual_seed(1)
    assert torch.equal(whole, drop(logits.flatten(0, 1)).view_as(logits))
    torch.manual_seed(1)
    three = drop(logits[0, 0])
    torch.manual_seed(1)
    assert torch.equal(three, drop(logits[0, 0].unsqueeze(1)).squeeze(1))


@pytest.mark.no_cover
def test_compiled() -> None:
    drop = AttentionDrop("hard(p=0.4,k=3)+blur(sigma_max=1.0)")
    compiled = torch.compile(drop, backend="aot_eager", fullgraph=True)
    logits = torch.randn(2, 4, 6, 7)
    torch.manual_seed(1)
    expected = drop(logits)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(logits), expected)


def test_bad_input() -> None:
    with pytest.raises(ad.ArgumentError, match="spec: expected a spec or its text, received 3"):
        AttentionDrop(3)
    with pytest.raises(ad.ShapeError, match=r"logits: expected \[..., heads, queries, keys\], received \[6, 7\]"):
        AttentionDrop("hard")(torch.randn(6, 7))
    with pytest.raises(
        ad.ShapeError, match=r"mask: expected a shape that broadcasts to \[2, 4, 6, 7\], received \[6, 6\]"
    ):
        AttentionDrop("hard")(torch.randn(2, 4, 6, 7), torch.ones(6, 6, dtype=torch.bool))
    with pytest.raises(ad.ArgumentError, match='axes: expected "keys" under a causal mask'):
        AttentionDrop("blur(axes=both)")(torch.randn(2, 4, 6, 6), is_causal=True)
