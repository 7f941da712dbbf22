# ruff: noqa: NPY002 (models use the legacy random numbers, so these are to be looked after)
"""`attach` reaches attention in unusual forms, or says by name what it missed: by reading, on an example, in a step."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from unusual import REACHED, REPORTED, Flex, Heads, InlineSoftmax, InTable, Plain

import attentiondrop as ad
from attentiondrop.torch import attach, detach
from attentiondrop.torch.attach import first_step
from attentiondrop.torch.attach.first_step import FirstStep

HARD = ad.HardMasking(p=0.4, k=3)


def beside(cls: type[nn.Module]) -> nn.Module:
    """The form beside a site that is reached."""
    torch.manual_seed(0)
    return nn.Sequential(Plain(), cls())


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0))


def quietly(model: nn.Module, x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=ad.AttentionDropWarning)
        result: Tensor = model(x)
    return result


@pytest.mark.parametrize("cls", REACHED)
def test_reached(cls: type[nn.Module], x: Tensor) -> None:
    model = beside(cls)
    model.eval()
    plain = model(x)
    attachment = attach(model, HARD)
    assert [site.name for site in attachment.sites] == ["0", "1"] and not attachment.unreached
    assert torch.equal(model(x), plain), "evaluation changed"
    model.train()
    y = quietly(model[0], x).detach()
    assert not torch.equal(model[1](y), model[1](y)), "not perturbed"
    quietly(model, x)  # the first step of the whole finds nothing that was missed


@pytest.mark.parametrize("how", ["example", "first step"])
@pytest.mark.parametrize("cls", REPORTED)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_reported(cls: type[nn.Module], how: str, x: Tensor) -> None:
    model = beside(cls)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attachment = attach(model, HARD, example=x if how == "example" else None)
        if how == "first step":
            with torch.set_grad_enabled(cls is not Flex):  # which has no backward on a CPU
                model(x)
    assert [(entry.name, entry.cls) for entry in attachment.unreached] == [("1", cls.__name__)]
    said = [warning for warning in caught if issubclass(warning.category, ad.AttentionDropWarning)]
    assert len(said) == 1 and f"1  {cls.__name__}  it c" in str(said[0].message)
    assert said[0].filename == __file__
    assert [site.name for site in attachment.sites] == ["0"]


class Mixing(nn.Module):
    """The weights of streams beside an attention, as of hyper-connections: a softmax without a product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight).softmax(-1)


class Gate(nn.Module):
    """Softmaxes that are no attention: a router of experts, classes, a loss, a codebook, streams."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.router, self.head = Plain(), nn.Parameter(torch.randn(16, 4)), nn.Linear(16, 5)
        self.experts, self.attn_mixing = nn.Parameter(torch.randn(4, 16, 16)), Mixing()

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x * self.attn_mixing(x) + self.attention(x), (16,))
        gates = (x @ self.router.float()).softmax(-1)
        out = torch.einsum("bnd,edf->benf", x, self.experts)
        x = torch.einsum("bne,benf->bnf", gates, out)
        similarity = F.log_softmax(x[:, 0] @ x[:, 1].T, dim=-1)  # a contrastive loss
        return self.head(x.mean(1)).softmax(-1) + similarity.diagonal().mean()


def test_other_softmaxes_are_no_attention(x: Tensor) -> None:
    assert not attach(Gate(), HARD, example=x).unreached
    model = Gate()
    attach(model, HARD)
    quietly(model, x)


def test_where_nothing_will_run_the_code_must_do(x: Tensor) -> None:
    compiled = torch.compile(beside(InlineSoftmax))
    with pytest.warns(ad.AttentionDropWarning, match="1  InlineSoftmax  it computes its softmax itself"):
        attach(compiled, HARD)


class Counting(nn.Module):
    """What an example could change: statistics, counters, random numbers of three kinds, attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm, self.missed = Plain(), nn.BatchNorm1d(16), InTable()
        self.frozen = nn.Dropout(0.5)
        self.calls, self.average = 0, torch.zeros(3)
        self.register_buffer("queue", torch.zeros(2))

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        self.calls += 1
        self.average += 1
        self.queue = self.queue + 1
        x = self.frozen(x) + random.random() + float(np.random.rand()) + shift
        return self.missed(self.norm(self.attention(x).mT).mT)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("form", ["tensor", "tuple", "dict"])
def test_an_example_leaves_everything_as_it_was(form: str, training: bool, x: Tensor) -> None:
    model = Counting().train(training)
    model.frozen.eval()
    model(x).sum().backward()
    state = copy.deepcopy(model.state_dict())
    grads = [p.grad.clone() for p in model.parameters()]
    flags = [module.training for module in model.modules()]
    calls, average = model.calls, model.average.clone()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    drawn = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    example: Any = {"tensor": x, "tuple": (x, 0.1), "dict": {"x": x, "shift": 0.1}}[form]
    spec = "hard(p=0.4,k=3)" if form == "tensor" else ad.HardMasking(p=ad.adaptive.EntropyTarget(0.5), k=3)
    with pytest.warns(ad.AttentionDropWarning, match="missed"):
        attachment = attach(model, spec, example=example)
    assert (torch.rand(1), random.random(), np.random.rand()) == drawn
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))
    assert [module.training for module in model.modules()] == flags
    assert model.calls == calls and torch.equal(model.average, average)
    assert all(site.monitor is None or not site.monitor.sums for site in attachment.sites)
    model.train()
    quietly(model, x)  # said once


def test_an_example_that_does_not_fit_leaves_nothing_behind(x: Tensor) -> None:
    model = beside(Heads)
    with pytest.raises(RuntimeError) as error:
        attach(model, HARD, example=torch.randn(2, 7, 5))
    assert "example: expected what Sequential is called with in training" in error.value.__notes__
    assert detach(model) == 0
    with pytest.raises(
        ad.ArgumentError, match="example: expected a tensor, a tuple of positional or a dict of keyword"
    ):
        attach(model, HARD, example=[x])
    assert detach(model) == 0


def test_patterns_leave_out_what_is_not_asked_for(x: Tensor) -> None:
    assert not attach(beside(InTable), {"0": HARD}, example=x).unreached
    model = beside(InTable)
    attach(model, {"0": HARD})
    quietly(model, x)


@pytest.mark.parametrize("cls", [InlineSoftmax, InTable])
def test_a_pattern_that_says_none_silences_the_report(cls: type[nn.Module], x: Tensor) -> None:
    model = nn.Sequential(beside(cls), nn.Linear(16, 16))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=ad.AttentionDropWarning)
        attachment = attach(model, {"0.1": None, "1": None, "*": HARD})
    quietly(model, x)
    assert [site.name for site in attachment.sites] == ["0.0"] and not attachment.unreached
    # The name of a module around a site is no name of the site.
    with pytest.raises(ad.AttachError, match=r"pattern '0' matches no attention site; there is 0\.0"):
        attach(nn.Sequential(beside(cls)), {"0": None, "*": HARD})


def test_parts_in_evaluation_mode_are_not_missed(x: Tensor) -> None:
    model = beside(InTable)
    model[1].eval()
    assert not attach(model, HARD, example=x).unreached


def waiting(model: nn.Module) -> bool:
    return "_compiled_call_impl" in vars(model)


def test_the_first_step_leaves_nothing_behind(x: Tensor) -> None:
    model = beside(InTable)
    attachment = attach(model, HARD)
    model.eval()
    quietly(model, x)
    assert waiting(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not waiting(twin)
    model.train()
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 7, 5))
    assert not torch.overrides._get_current_function_mode_stack()
    with pytest.warns(ad.AttentionDropWarning, match="1  InTable"):
        model(x)
    assert not waiting(model)
    attachment.remove()

    model = beside(InTable)
    attachment = attach(model, HARD)
    attachment.remove()
    assert not waiting(model)
    attach(model, HARD)
    assert detach(model) == 1 and not waiting(model)


def test_a_step_that_ends_by_an_error_shows_nothing_so_the_next_is_watched(x: Tensor) -> None:
    model = beside(InTable)
    attachment = attach(model, HARD)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            quietly(model, torch.randn(2, 7, 5))
    with pytest.warns(ad.AttentionDropWarning, match="1  InTable"):
        model(x)
    assert [entry.name for entry in attachment.unreached] == ["1"] and not waiting(model)
    quietly(model, x)

    model = beside(InTable)
    attach(model, HARD)
    for left in (True, True, False):  # some models end every call by an error
        assert waiting(model)
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 7, 5))
        assert waiting(model) == left


def test_the_first_step_computes_what_later_ones_do(x: Tensor) -> None:
    model = beside(InlineSoftmax)
    attach(model, HARD)
    results = []
    for step in range(2):
        model.zero_grad()
        torch.manual_seed(1)
        with pytest.warns(ad.AttentionDropWarning) if step == 0 else contextlib.nullcontext():
            output = model(x)
        output.sin().mean().backward()
        results.append([output.detach(), *(p.grad.clone() for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_replica_runs_itself(x: Tensor) -> None:
    """nn.DataParallel copies the attributes of a model to its replicas."""
    model = beside(InTable)
    attach(model, HARD)
    replica = model._replicate_for_data_parallel()
    replica._modules = {"0": nn.Identity(), "1": nn.Identity()}
    assert torch.equal(replica(x), x)
    # It does not look for missed attention. The model itself still will.
    quietly(model._replicate_for_data_parallel(), x)
    assert waiting(model)


@pytest.mark.no_cover
def test_compiled_the_first_step_is_left_out(x: Tensor) -> None:
    torch._dynamo.reset()
    model = beside(InTable)
    attach(model, HARD)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    quietly(compiled, x)
    model = beside(InTable)
    attach(model, HARD)
    model.compile(backend="eager")
    assert not isinstance(model._compiled_call_impl, FirstStep)


def test_a_compiled_part_is_not_looked_at(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking would compile it again. The code must tell then, or an example."""
    model = beside(InlineSoftmax)
    model[0].compile(backend="eager")
    with pytest.warns(ad.AttentionDropWarning, match="1  InlineSoftmax  it computes its softmax itself"):
        attach(model, HARD)
    assert not waiting(model)
    model = beside(InTable)
    attach(model, HARD)
    model[1].compile(backend="eager")  # after `attach`
    monkeypatch.setattr(first_step, "FindUnperturbed", None)
    assert quietly(model, x).shape == x.shape


def test_a_graph_break_does_not_start_it(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaks(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            result: Tensor = self[0](x)
            return result

    torch._dynamo.reset()
    model = Breaks(InTable(), Plain())
    attach(model, HARD)
    monkeypatch.setattr(first_step, "FindUnperturbed", None)
    quietly(torch.compile(model, backend="eager"), x)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_still_works_in_the_first_step(x: Tensor) -> None:
    torch._dynamo.reset()
    model = beside(Flex)
    with pytest.warns(ad.AttentionDropWarning, match="it calls flex_attention"):
        attach(model, ad.HardMasking(p=0.0, k=1))
    with torch.no_grad():
        torch.testing.assert_close(quietly(model, x), model(x))


def test_nothing_reached_names_what_was_seen(x: Tensor) -> None:
    with pytest.raises(ad.AttachError, match=r"seen, but out of reach:\n  0  InTable  it calls scaled_dot_product"):
        attach(nn.Sequential(InTable()), HARD, example=x)
    with pytest.raises(ad.AttachError, match=r"seen, but out of reach:\n  0  InlineSoftmax  it computes its softmax"):
        attach(nn.Sequential(InlineSoftmax()), HARD)
