"""The oracle itself: against hand-computed numbers, SciPy, and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import ndimage, special

import attentiondrop as ad
from attentiondrop import reference
from attentiondrop.specs import Spec

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def fresh_numbers() -> None:
    """Every test starts at the same place, whatever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def field(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def draws_for(spec: Spec, shape: tuple[int, int, int, int]) -> Any:
    batch, heads, _, _ = shape
    if isinstance(spec, ad.Compose):
        return [draws_for(part, shape) for part in spec.parts]
    if isinstance(spec, ad.OneOf):
        return RNG.random(), [draws_for(part, shape) for part in spec.parts]
    if isinstance(spec, ad.GaussianNoise):
        return field(*shape)
    if isinstance(spec, ad.BlurSmoothing):
        return RNG.random({"batch": (), "sample": (batch,), "head": (heads,)}[spec.sampling])
    if isinstance(spec, ad.DropHead | ad.HeadMask):
        return RNG.random((batch, heads))
    return RNG.random(shape)


SPECS: list[Spec] = [
    ad.HardMasking(p=0.4, k=2),
    ad.HardMasking(p=0.4, k=2, fill="-inf"),
    ad.BlurSmoothing(1.5, axes="both", sampling="sample"),
    ad.BlurSmoothing(1.5, edges="renormalize", sampling="head"),
    ad.GaussianNoise(0.5),
    ad.DropKey(0.4),
    ad.DropHead(0.4),
    ad.AttentionDropout(0.4),
    ad.HeadMask(2),
    ad.Compose(
        [ad.HardMasking(p=0.4, k=2, fill="-inf"), ad.BlurSmoothing(1.0), ad.AttentionDropout(0.2), ad.DropHead(0.3)]
    ),
    ad.OneOf([ad.DropKey(0.3), ad.GaussianNoise(1.0)]),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 1.2}, {"sinks": np.array([0.3, -0.2, 0.1, 0.9])}], ids=["", "cap", "sinks"]
)
def test_gradients_are_those_of_the_function(spec: Spec, options: dict[str, Any]) -> None:
    """Central differences along random directions; the draws are fixed, so the function is smooth almost everywhere."""
    q, k, v = field(2, 4, 5, 3), field(2, 2, 6, 3), field(2, 2, 6, 3)
    bias, grad = field(2, 4, 5, 6), field(2, 4, 5, 3)
    mask = RNG.random((2, 1, 1, 6)) < 0.8
    draws = draws_for(spec, (2, 4, 5, 6))

    def value(*inputs: Any) -> float:
        result = reference.attention(*inputs[:3], spec, draws, attn_mask=mask, bias=inputs[3], **options)
        return float((result.output * grad).sum())

    inputs = (q, k, v, bias)
    result = reference.attention(q, k, v, spec, draws, attn_mask=mask, bias=bias, **options)
    gradients = result.gradients(grad)
    for index, gradient in enumerate(gradients):
        direction = field(*inputs[index].shape)
        step = 1e-6
        ends = [[x + sign * step * direction if i == index else x for i, x in enumerate(inputs)] for sign in (1, -1)]
        slope = (value(*ends[0]) - value(*ends[1])) / (2 * step)
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-6, abs=1e-8)


def test_gradients_of_an_empty_batch() -> None:
    q, k, v = np.zeros((0, 4, 5, 3)), np.zeros((0, 2, 6, 3)), np.zeros((0, 2, 6, 2))
    found = reference.attention(q, k, v).gradients(np.zeros((0, 4, 5, 2)))
    assert [gradient.shape for gradient in found[:3]] == [q.shape, k.shape, v.shape]


def test_plain_attention() -> None:
    q, k, v = field(1, 2, 5, 3), field(1, 2, 6, 3), field(1, 2, 6, 4)
    weights = special.softmax(q @ k.swapaxes(-1, -2) / np.sqrt(3), axis=-1)
    np.testing.assert_allclose(reference.attention(q, k, v).output, weights @ v, rtol=1e-14, atol=1e-15)


def test_hard_masking_by_hand() -> None:
    logits = np.array([3.0, 1.0, 2.0, 2.0, -5.0])[None, None, None]
    visible = np.array([True, True, True, True, True])[None, None, None]
    uniform = np.array([0.0, 0.0, 0.9, 0.0, 0.0])[None, None, None]
    step = reference.hard_masking(logits, visible, uniform, p=0.5, k=3)
    # top three: keys 0, 2, 3 (the tie of 2 and 3 is inside); key 2 survives its draw, keys 1 and 4 are no candidates
    np.testing.assert_array_equal(step.logits[0, 0, 0], [0.0, 1.0, 2.0, 0.0, -5.0])
    step = reference.hard_masking(logits, visible, uniform, p=0.5, k=2)
    np.testing.assert_array_equal(step.logits[0, 0, 0], [0.0, 1.0, 2.0, 2.0, -5.0])
    hidden = visible & (np.arange(5) > 0)
    step = reference.hard_masking(logits, hidden, np.zeros_like(uniform), p=0.5, k=9)
    np.testing.assert_array_equal(step.logits[0, 0, 0], [3.0, 0.0, 0.0, 0.0, 0.0])


def test_nothing_loses_its_last_key() -> None:
    logits = np.array([[1.0, 3.0, 3.0], [2.0, 1.0, 0.0]])[None, None]
    visible = np.array([[True, True, True], [False, False, False]])[None, None]
    for step in (
        reference.hard_masking(logits, visible, np.zeros_like(logits), 1.0, 3, "-inf"),
        reference.drop_key(logits, visible, np.zeros_like(logits), 1.0),
    ):
        np.testing.assert_array_equal(step.visible[0, 0], [[False, True, False], [False, False, False]])
        weights = reference.masked_softmax(step.logits, step.visible).weights[0, 0]
        np.testing.assert_array_equal(weights, [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])


@pytest.mark.parametrize("sigma", [0.0, 1e-30, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("width", [1, 3, 7])
def test_blur_is_a_convolution(sigma: float, width: int) -> None:
    logits = field(1, 1, 4, 9)
    kernel = reference.gaussian_kernel(sigma, width)
    assert kernel.sum() == pytest.approx(1.0) and np.isfinite(kernel).all()
    np.testing.assert_allclose(kernel, kernel[::-1])
    step = reference.blur_smoothing(logits, np.ones_like(logits, dtype=bool), sigma, width)
    np.testing.assert_allclose(step.logits, ndimage.correlate1d(logits, kernel, mode="constant"), atol=1e-14)
    both = reference.blur_smoothing(logits, np.ones_like(logits, dtype=bool), sigma, width, axes="both")
    expected = ndimage.correlate1d(
        ndimage.correlate1d(logits, kernel, mode="constant"), kernel, axis=-2, mode="constant"
    )
    np.testing.assert_allclose(both.logits, expected, atol=1e-14)


def test_blur_edges() -> None:
    logits, visible = np.ones((1, 1, 1, 4)), np.array([True, True, False, True])[None, None, None]
    kernel = reference.gaussian_kernel(1.0, 3)
    zero = reference.blur_smoothing(logits, visible, 1.0, 3).logits[0, 0, 0]
    np.testing.assert_allclose(zero[[0, 1, 3]], [kernel[1] + kernel[2], kernel[0] + kernel[1], kernel[1]])
    renormalised = reference.blur_smoothing(logits, visible, 1.0, 3, edges="renormalize").logits[0, 0, 0]
    np.testing.assert_allclose(renormalised[[0, 1, 3]], 1.0)


def test_heads() -> None:
    np.testing.assert_allclose(reference.head_factors(np.array([[0.1, 0.6, 0.9, 0.2]]), 0.5), [[0.0, 2.0, 2.0, 0.0]])
    np.testing.assert_allclose(reference.head_factors(np.array([[0.1, 0.6, 0.9, 0.2]]), 1.0), [[0.0, 0.0, 4.0, 0.0]])


def test_masked_heads() -> None:
    scores = np.array([[0.1, 0.6, 0.9, 0.2], [0.5, 0.5, 0.1, 0.5]])
    np.testing.assert_array_equal(reference.head_mask(scores, 2), [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    with pytest.raises(ad.ArgumentError, match="count: expected fewer than the 4 heads, received 4"):
        reference.head_mask(scores, 4)


def test_drop_attention_by_hand() -> None:
    weights = np.array([[[[0.5, 0.3, 0.2, 0.0, 0.0]]]])
    for low, span, expected in [
        ([0], 1, [0.0, 0.6, 0.4, 0.0, 0.0]),
        ([2], 1, [0.625, 0.375, 0.0, 0.0, 0.0]),
        ([1], 2, [0.5, 0.3, 0.2, 0.0, 0.0]),  # the second key of a block decides nothing
        ([0], 2, [0.0, 0.0, 1.0, 0.0, 0.0]),
        ([0, 1, 2], 1, [1.0, 0.0, 0.0, 0.0, 0.0]),  # what is left has no weight: the largest stays
        ([0], 9, [1.0, 0.0, 0.0, 0.0, 0.0]),
    ]:
        uniform = np.full((1, 1, 1, 5), 0.9)
        uniform[..., low] = 0.0
        found = reference.drop_attention(weights, uniform, 0.5, span)
        np.testing.assert_allclose(found.weights[0, 0, 0], expected, rtol=1e-15)
        kept = np.array(expected) > 0
        factor = 1.0 / weights[0, 0, 0][kept].sum()
        np.testing.assert_allclose(found.pullback(np.ones(5))[0, 0, 0][kept], factor, rtol=1e-15)
    blind = np.zeros((1, 1, 1, 5))
    np.testing.assert_array_equal(reference.drop_attention(blind, np.zeros((1, 1, 1, 5)), 0.5).weights, blind)


def test_drop_attention_is_drop_key_but_for_the_gradient_of_the_divisor() -> None:
    """The weights are those of DropKey. So are the gradients of the values; those of the logits are not."""
    q, k, v, grad = field(2, 3, 5, 4), field(2, 3, 7, 4), field(2, 3, 7, 4), field(2, 3, 5, 4)
    for by, shape in (("element", (2, 3, 5, 7)), ("column", (2, 3, 7))):
        uniform = RNG.random(shape)
        key, attention = (reference.attention(q, k, v, cls(0.4, by), uniform) for cls in (ad.DropKey, ad.DropAttention))
        np.testing.assert_allclose(attention.weights, key.weights, rtol=1e-13, atol=1e-15)
        wanted, found = key.gradients(grad), attention.gradients(grad)
        np.testing.assert_allclose(found[2], wanted[2], rtol=1e-12, atol=1e-14)
        assert np.abs(found[3] - wanted[3]).max() > 0.01
        # A constant divisor: the gradient of the logits is that of a softmax, of which only the kept part was used.
        soft = reference.attention(q, k, v).weights
        delta = (grad * attention.output).sum(-1, keepdims=True)
        np.testing.assert_allclose(found[3] - wanted[3], delta * (key.weights - soft), rtol=1e-9, atol=1e-12)


def test_one_of_covers_the_whole_interval() -> None:
    spec = ad.OneOf([ad.DropKey(), ad.DropHead()], [0.3, 0.7])
    for uniform, cls in ((0.0, ad.DropKey), (0.2999, ad.DropKey), (0.3, ad.DropHead), (1 - 2**-24, ad.DropHead)):
        ((leaf, _),) = reference.chosen_leaves(spec, (uniform, [None, None]))
        assert isinstance(leaf, cls)


def test_an_additive_mask_hides_at_half_of_the_lowest_value() -> None:
    lowest = np.finfo(np.float32).min
    mask = np.array([0.0, -1e30, lowest, lowest / 2, -np.inf], dtype=np.float32)
    np.testing.assert_array_equal(reference.visibility((1, 1, 1, 5), mask)[0, 0, 0], [True, True, False, False, False])


def test_perturb_logits_refuses_other_levels() -> None:
    with pytest.raises(ad.ArgumentError, match="spec: expected a logit-level regulariser"):
        reference.perturb_logits(ad.DropHead(), field(1, 1, 2, 2), np.ones((1, 1, 2, 2), bool), field(1, 1))
