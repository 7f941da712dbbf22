"""KL against scipy: direction, reduction, masks; and what may be logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax
from torch import Tensor

import attentiondrop as ad
from attentiondrop.torch.consistency.divergence import check_logits, compiled_divergence, divergence
from tests.torch.compiler import needs_compiler

SHAPES = [(4, 5), (2, 3, 6), (2, 2, 3, 4)]


def samples(count: int, shape: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64) * 3 for _ in range(count)]


def scipy_kl(a: Tensor, b: Tensor) -> np.ndarray:
    return rel_entr(softmax(a.numpy(), axis=-1), softmax(b.numpy(), axis=-1)).sum(-1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "symmetric"])
@pytest.mark.parametrize("count", [2, 3])
def test_against_scipy(shape: tuple[int, ...], direction: str, count: int) -> None:
    views = samples(count, shape)
    mask = torch.rand(shape[:-1]) < 0.6
    mask.view(-1)[0] = True
    forward = [scipy_kl(a, b) for i, a in enumerate(views) for b in views[i + 1 :]]
    reverse = [scipy_kl(b, a) for i, a in enumerate(views) for b in views[i + 1 :]]
    terms = {"forward": forward, "reverse": reverse, "symmetric": forward + reverse}[direction]
    mean = np.mean(terms, axis=0)
    assert float(divergence(views, direction)) == pytest.approx(mean.mean(), rel=1e-12)
    assert float(divergence(views, direction, mask)) == pytest.approx(mean[mask.numpy()].mean(), rel=1e-12)
    assert float(divergence(views, direction, mask.long(), 100)) == pytest.approx(mean[mask].sum() / 100, rel=1e-12)


def test_half_precision_is_computed_wider() -> None:
    views = [view.bfloat16() for view in samples(2, (4, 5))]
    found = divergence(views)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, divergence([view.float() for view in views]))


def test_impossible_classes() -> None:
    """A class that neither view allows adds nothing, forward and backward."""
    first, second = (view.requires_grad_() for view in samples(2, (3, 4)))
    hidden = torch.tensor([False, True, False, False])
    found = divergence([view.masked_fill(hidden, -torch.inf) for view in (first, second)])
    torch.testing.assert_close(found, divergence([view[:, ~hidden] for view in (first, second)]))
    found.backward()
    assert first.grad.isfinite().all() and second.grad.isfinite().all()


@needs_compiler
def test_compiled() -> None:
    """Impossible classes and a mask included: the same values and gradients."""
    torch._dynamo.reset()
    views = [torch.randn(2, 3, 5, requires_grad=True) for _ in range(3)]
    hidden, mask = torch.tensor([False, True, False, False, False]), torch.rand(2, 3) < 0.6
    found = []
    for function in (divergence, compiled_divergence()):
        value = function([view.masked_fill(hidden, -torch.inf) for view in views], "symmetric", mask)
        found.append([value, *torch.autograd.grad(value, views)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-7)


def test_nothing_to_compare() -> None:
    assert divergence(samples(2, (2, 3, 4)), mask=torch.zeros(2, 3, dtype=torch.bool)) == 0


def test_what_does_not_count_may_be_anything() -> None:
    """Padding: rows that see no key may give NaN, and an impossible class of one view only an infinite KL."""
    views, mask = samples(2, (2, 3, 4)), torch.ones(2, 3, dtype=torch.bool)
    mask[1, 1:] = False
    wanted = divergence(views, mask=mask)
    views[0][1, 1], views[1][1, 2, 0] = torch.nan, -torch.inf
    assert divergence(views).isnan() and torch.equal(divergence(views, mask=mask), wanted)


def test_a_single_position_counts_in_full() -> None:
    views, mask = samples(2, (2, 3, 4)), torch.zeros(2, 3, dtype=torch.bool)
    mask[1, 2] = True
    assert float(divergence(views, mask=mask)) == pytest.approx(scipy_kl(*views)[1, 2], rel=1e-12)


def test_gradients_flow_through_both_views() -> None:
    first, second = (view.requires_grad_() for view in samples(2, (3, 4)))
    for direction in ("forward", "reverse", "symmetric"):
        assert torch.autograd.gradcheck(lambda a, b: divergence([a, b], direction), (first, second))


def test_bad_input() -> None:
    with pytest.raises(ad.ShapeError, match=r"mask: expected \[2, 3\], .* received \[2\]"):
        divergence(samples(2, (2, 3, 4)), mask=torch.ones(2))
    with pytest.raises(ad.ArgumentError, match=r"direction: expected one of 'forward', 'reverse', 'symmetric'"):
        divergence(samples(2, (2, 3)), "backward")
    with pytest.raises(ad.ArgumentError, match=r"logits: expected a floating point tensor of logits, received 'dict'"):
        check_logits({})
    with pytest.raises(ad.ArgumentError, match=r"received 'torch.int64 tensor'"):
        check_logits(torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(ad.ArgumentError, match=r"at least two classes, received \[4, 1\]"):
        check_logits(torch.ones(4, 1))
