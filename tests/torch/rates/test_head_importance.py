"""`HeadMask(choice="important")`: what it measures, what it masks, and that the means survive what models go through."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attentiondrop as ad
from attentiondrop import reference
from attentiondrop.torch import attach, attention
from attentiondrop.torch.attach.sites import site_of
from attentiondrop.torch.rates.head_importance import DECAY

HEADS, SIZE = 4, 8
SPEC = ad.HeadMask(2, "important")


class Model(nn.Module):
    """One attention. A matrix mixes its heads: without one, a head that is masked would have no effect on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(HEADS * SIZE, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return output.square() + output


def model_and_inputs() -> tuple[Model, Tensor]:
    torch.manual_seed(0)
    return Model().double(), torch.randn(3, 5, HEADS * SIZE, dtype=torch.float64)


def means_of(model: Model) -> Tensor:
    site: Any = site_of(model.attention)
    means: Tensor = site.driven.states[0].means
    return means


def derivative_by_factors(model: Model, x: Tensor, masked: list[int]) -> Tensor:
    """|d loss / d factor| of each head, averaged over the samples, by finite differences through plain torch."""
    weight, bias = model.attention.in_proj_weight, model.attention.in_proj_bias
    q, k, v = (part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in (x @ weight.T + bias).chunk(3, dim=-1))
    heads = nn.functional.scaled_dot_product_attention(q, k, v)

    def losses(factors: Tensor) -> Tensor:
        mixed = model.attention.out_proj((heads * factors[:, None, None]).transpose(1, 2).flatten(2))
        return (mixed.square() + mixed).sum((1, 2))  # one for each sample

    factors = torch.ones(HEADS, dtype=torch.float64)
    factors[masked] = 0.0
    found = []
    for head in range(HEADS):
        step = torch.zeros(HEADS, dtype=torch.float64)
        step[head] = 1e-5
        with torch.no_grad():
            found.append(((losses(factors + step) - losses(factors - step)) / 2e-5).abs().mean())
    return torch.stack(found)


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_the_mean_is_that_of_the_derivatives_by_factors_on_heads(backend: Any) -> None:
    """Those of masked heads count as 0. The first step masks the first heads, since all means are still 0."""
    model, x = model_and_inputs()
    attach(model, SPEC, backend)
    expected = torch.zeros(HEADS, dtype=torch.float64)
    seen = set()
    for _ in range(20):
        masked = expected.argsort(descending=True, stable=True)[:2].tolist()
        model(x).sum().backward()
        found = derivative_by_factors(model, x, masked)
        found[masked] = 0.0
        expected = DECAY * expected + (1 - DECAY) * found
        seen.update(masked)
        torch.testing.assert_close(means_of(model).double(), expected, rtol=1e-5, atol=1e-9)
    assert seen == set(range(HEADS))  # no head is left out of training for good


def test_the_largest_means_are_masked_in_all_samples() -> None:
    model, x = model_and_inputs()
    attachment = attach(model, SPEC)
    model(x)
    means_of(model).copy_(torch.tensor([0.1, 0.9, 0.3, 0.5]))
    q, k, v = torch.randn(3, 3, HEADS, 5, SIZE, dtype=torch.float64)
    site: Any = attachment.sites[0]
    from attentiondrop.torch.call.inputs import Options
    from attentiondrop.torch.functional import perturbed_attention

    for backend in ("eager", "auto"):
        output = perturbed_attention(q, k, v, site.drop, Options(), backend=backend).output
        wanted = reference.attention(*(t.numpy() for t in (q, k, v)), SPEC, means_of(model).double().numpy()).output
        torch.testing.assert_close(output, torch.from_numpy(wanted))
        assert (output[:, [1, 3]] == 0).all() and (output[:, [0, 2]] != 0).all()


def test_evaluation_is_the_original_model_and_moves_no_mean() -> None:
    model, x = model_and_inputs()
    plain = model.eval()(x)
    keys = list(model.state_dict())
    attachment = attach(model, SPEC)
    model.train()(x).sum().backward()
    before = means_of(model).clone()
    assert torch.equal(model.eval()(x), plain) and list(model.state_dict()) == keys
    model(x).sum().backward()
    assert torch.equal(means_of(model), before)
    assert attachment.rates() == {} and list(attachment.parameters()) == []


def test_state_copies_and_pickles() -> None:
    model, x = model_and_inputs()
    attachment = attach(model, ad.Compose([ad.DropKey(0.1), SPEC]))
    assert attachment.state_dict()["importance"] == {}
    model(x).sum().backward()
    stored = io.BytesIO()
    torch.save(attachment.state_dict(), stored)
    stored.seek(0)
    state = torch.load(stored)
    (means,) = state["importance"].values()
    assert means.shape == (HEADS,) and bool((means[2:] > 0).all())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        one, other = (site_of(m.attention).driven.states[1] for m in (model, twin))  # type: ignore[union-attr]
        assert torch.equal(one.means, other.means) and one.means is not other.means
        twin(x).sum().backward()
        assert torch.equal(one.means, means) and not torch.equal(other.means, means)

    again = Model().double()
    resumed = attach(again, ad.Compose([ad.DropKey(0.1), SPEC]))
    resumed.load_state_dict(state)
    assert torch.equal(resumed.state_dict()["importance"]["attention.1"], means)
    again(x)  # the means fit
    kept = site_of(again.attention).driven.states[1]  # type: ignore[union-attr]
    held = kept.room
    resumed.load_state_dict({**state, "importance": {}})  # the state of an attachment that never ran
    assert kept.room is held and not held.any()
    assert any(tensor is held for tensor in resumed.tensors())
    with pytest.raises(ad.AttentionDropError, match="state: expected the state of an attachment with the same specs"):
        attach(Model(), ad.HeadMask(2)).load_state_dict(state)
    with pytest.raises(ad.AttentionDropError, match="state: expected the importance of 4 heads, received 'that of 3'"):
        resumed.load_state_dict({**state, "importance": {"attention.1": torch.ones(3)}})
    old = {key: value for key, value in attach(Model(), ad.DropKey()).state_dict().items() if key != "importance"}
    attach(Model(), ad.DropKey()).load_state_dict(old)


def test_a_gradient_that_overflowed_counts_for_nothing() -> None:
    model, x = model_and_inputs()
    attach(model, SPEC)
    model(x).sum().backward()
    before = means_of(model).clone()
    (model(x).sum() * torch.inf).backward()
    assert torch.equal(means_of(model), before)


def two_batches_before_the_backward(call: Any, x: Tensor) -> None:
    (call(x).sum() + call(2 * x).sum()).backward()


def shared_weights(call: Any, x: Tensor) -> None:
    call(call(x)).sum().backward()


@pytest.mark.parametrize("step", [two_batches_before_the_backward, shared_weights])
def test_checkpointing_changes_nothing(step: Any) -> None:
    """A call that is computed again masks the heads of the first time, and is measured once."""
    results = []
    for reentrant in (None, False, True):
        model, x = model_and_inputs()
        x.requires_grad_()
        attach(model, SPEC)

        def call(x: Tensor, model: Model = model, reentrant: bool | None = reentrant) -> Tensor:
            return model(x) if reentrant is None else checkpoint(model, x, use_reentrant=reentrant)

        for _ in range(3):
            step(call, x)
        results.append([means_of(model).double(), *(p.grad for p in model.parameters())])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-6, atol=1e-9)


def test_one_that_was_not_chosen_masks_nothing() -> None:
    torch.manual_seed(0)
    model, x = model_and_inputs()
    plain = model(x)
    attach(model, ad.OneOf([SPEC, ad.DropKey(0.0)], weights=[1e-9, 1.0]))
    torch.testing.assert_close(model(x), plain)


def test_watching_counts_masked_heads() -> None:
    model, x = model_and_inputs()
    attachment = attach(model, SPEC)
    attachment.watch()
    model(x).sum().backward()
    assert attachment.stats()["attention"].drop_rates == {"headmask": [1.0, 1.0, 0.0, 0.0]}


def test_clear_refusals() -> None:
    q = torch.randn(1, HEADS, 3, SIZE)
    with pytest.raises(ad.ArgumentError, match="choice: expected 'random' without attach, which keeps the importance"):
        attention(q, q, q, SPEC)
    with pytest.raises(ad.ArgumentError, match="count: expected fewer than the 4 heads of the attention, received 4"):
        attention(q, q, q, ad.HeadMask(4))


@pytest.mark.no_cover
def test_compiled() -> None:
    """The same means and gradients, with the whole model in one graph."""
    torch._dynamo.reset()
    results = []
    for compiled in (False, True):
        model, x = model_and_inputs()
        attach(model, SPEC)
        call: Any = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        for _ in range(3):
            call(x).sum().backward()
        results.append([means_of(model).double(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-9)
