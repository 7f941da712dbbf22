"""Schedules that `attach` drives: their values reach every path, exactly, and nothing is compiled anew."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from compiler import needs_compiler
from oracle_form import sample
from parity import CASES, relative_error, to_numpy
from torch import nn
from torch._dynamo.testing import CompileCounter

import attentiondrop as ad
from attentiondrop import reference
from attentiondrop.schedules import Depth, Linear, PerHead, PerLayer
from attentiondrop.torch import AttentionDrop, attach, attention, dispatch
from attentiondrop.torch.attach.sites import site_of
from attentiondrop.torch.call.leaves import Bounds, Driven, LogitShape
from attentiondrop.torch.functional import Options, perturbed_attention
from attentiondrop.torch.fused.amended_hard import HIGHEST_RATE
from attentiondrop.torch.rates.scheduled import STEPS, driven_at

HALF = [
    ad.HardMasking(p=Linear(0.0, 0.5), k=4),
    ad.HardMasking(p=Linear(0.5, 0.0), k=4, fill="-inf"),
    ad.BlurSmoothing(Linear(0.0, 2.0)),
    ad.BlurSmoothing(Linear(0.0, 2.0), sigma_min=Linear(0.0, 1.0), sampling="head"),
    ad.GaussianNoise(Linear(0.0, 0.5)),
    ad.DropKey(Linear(0.0, 0.5)),
    ad.DropHead(Linear(0.0, 0.5)),
    ad.AttentionDropout(Linear(0.0, 0.5)),
    ad.OneOf([ad.DropKey(Linear(0.0, 0.5)), ad.BlurSmoothing(Linear(0.0, 2.0))]),
    ad.Compose([ad.BlurSmoothing(1.0), ad.HardMasking(p=Linear(0.0, 0.5), k=2), ad.Consistency(Linear(0.0, 1.0))]),
]
PLAIN = next(case for case in CASES if case.name == "plain")


def driven(spec: ad.Spec, progress: float) -> Any:
    from attentiondrop.torch.rates.scheduled import driven_at

    return driven_at(spec, progress, 0, 1, nn.Linear(1, 1, dtype=torch.float64), None)


@pytest.mark.parametrize("backend", ["eager", "auto"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("spec", HALF, ids=str)
def test_tensors_compute_what_numbers_do(spec: ad.Spec, is_causal: bool, backend: Any) -> None:
    (q, k, v), grad, _ = PLAIN.make(torch.float64, "cpu")
    results = []
    for drop in (spec.at(0.5), driven(spec, 0.5)):
        inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        torch.manual_seed(3)
        output = perturbed_attention(*inputs, drop, Options(is_causal=is_causal), backend=backend).output
        output.backward(grad)
        results.append([output, *(x.grad for x in inputs)])
    for have, want in zip(*results, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-12, atol=1e-13)


PER_HEAD = [
    ad.HardMasking(p=PerHead([0.0, 0.5, 0.25]), k=4),
    ad.HardMasking(p=PerHead([0.5, 0.0, 0.25]), k=2, fill="-inf"),
    ad.BlurSmoothing(PerHead([0.0, 1.0, 2.0]), sigma_min=PerHead([0.0, 1.0, 0.5])),
    ad.BlurSmoothing(PerHead([0.0, 1.0, 2.0]), sampling="sample"),
    ad.GaussianNoise(PerHead([0.0, 1.0, 0.3])),
    ad.DropKey(PerHead([0.0, 0.5, 0.3])),
    ad.DropHead(PerHead([0.0, 0.5, 0.3])),
    ad.AttentionDropout(PerHead([0.0, 0.5, 0.3])),
]


@pytest.mark.parametrize("spec", PER_HEAD, ids=str)
def test_heads_have_rates_of_their_own(spec: ad.Spec) -> None:
    q, k, v = torch.randn(3, 2, 3, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    grad = torch.randn(2, 3, 7, 4, dtype=torch.float64)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(3)
    output = attention(*inputs, spec)
    output.backward(grad)
    torch.manual_seed(3)
    seed = torch.randint(0, 2**63 - 1, (), dtype=torch.int64)
    draws = sample(spec, seed, LogitShape(2, 3, 7, 7))
    result = reference.attention(*(to_numpy(x) for x in inputs), spec, to_numpy(draws))
    expected = [result.output, *result.gradients(to_numpy(grad))[:3]]
    for have, want in zip([output, *(x.grad for x in inputs)], expected, strict=True):
        assert relative_error(to_numpy(have), want) < 1e-12


def test_fused_says_why_it_cannot_take_rates_of_heads() -> None:
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(ad.BackendError, match="rates that differ between heads need the logits"):
        attention(q, q, q, ad.DropKey(PerHead([0.1, 0.2])), backend="fused")
    # A blur of its own for each head is attention on keys of its own for each head.
    attention(q, q, q, ad.BlurSmoothing(PerHead([0.1, 0.2])), backend="fused")


def test_a_schedule_needs_a_progress() -> None:
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(ad.AttentionDropError, match=r"p: expected a number \(attach evaluates schedules"):
        attention(q, q, q, ad.DropKey(Linear(0.0, 0.2)))


def encoder(layers: int = 3) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def test_attach_drives_every_layer() -> None:
    model = encoder()
    attachment = attach(model, ad.HardMasking(p=Depth(Linear(0.0, 0.4), 0.0), k=2))
    assert [spec.p for spec in attachment.specs().values()] == [0.0, 0.0, 0.0]
    attachment.set_progress(0.5)
    assert [spec.p for spec in attachment.specs().values()] == pytest.approx([0.2, 0.1, 0.0])
    tensors = [site.drop.values[0]["p"] for site in attachment.sites]
    assert [float(tensor) for tensor in tensors] == pytest.approx([0.2, 0.1, 0.0])
    attachment.set_progress(1.0)
    assert [float(tensor) for tensor in tensors] == pytest.approx([0.4, 0.2, 0.0])  # the same tensors
    attachment.update(ad.HardMasking(p=PerLayer([0.1, 0.2, Linear(0.0, 0.3)]), k=2))
    assert [spec.p for spec in attachment.specs().values()] == pytest.approx([0.1, 0.2, 0.3])
    attachment.update(ad.HardMasking())
    assert all(site.drop is site.spec for site in attachment.sites)
    assert not [key for key in model.state_dict() if "attentiondrop" in key]


def test_what_does_not_fit_is_an_error_before_training() -> None:
    with pytest.raises(ad.AttentionDropError, match="values: expected 3 values, one for each attached layer"):
        attach(model := encoder(), ad.HardMasking(p=PerLayer([0.1, 0.2])))
    assert all(site_of(module) is None for module in model.modules())
    with pytest.raises(ad.AttentionDropError, match="sigma_min: expected at most sigma_max"):
        attach(model, ad.BlurSmoothing(Linear(0.5, 0.0), sigma_min=0.1))
    attachment = attach(model, ad.HardMasking())
    with pytest.raises(ad.AttentionDropError, match=r"progress: expected a number in \[0, 1\], received 3"):
        attachment.set_progress(3)


def test_a_checkpoint_goes_on_at_the_same_value() -> None:
    attachment = attach(encoder(), ad.Compose([ad.DropKey(Linear(0.0, 0.4)), ad.Consistency(Linear(0.0, 1.0))]))
    attachment.set_progress(0.25)
    assert attachment.consistency == ad.Consistency(0.25)
    again = attach(encoder(), ad.Compose([ad.DropKey(Linear(0.0, 0.4)), ad.Consistency(Linear(0.0, 1.0))]))
    again.load_state_dict(attachment.state_dict())
    assert again.specs() == attachment.specs() and again.progress == 0.25


def test_copies_keep_their_own_values() -> None:
    model = encoder(1)
    attachment = attach(model, ad.DropKey(Linear(0.0, 0.4)))
    attachment.set_progress(0.5)
    twin = copy.deepcopy(model)
    attachment.set_progress(1.0)
    site = site_of(twin.layers[0].self_attn)
    assert site is not None and isinstance(site.drop, Driven)
    assert float(site.drop.values[0]["p"]) == pytest.approx(0.2)


def test_a_model_that_moves_takes_its_rates_along() -> None:
    attachment = attach(model := encoder(1), ad.DropKey(Linear(0.0, 0.4)))
    model.double()
    model(torch.randn(2, 5, 16, dtype=torch.float64))
    attachment.set_progress(0.5)
    (site,) = attachment.sites
    assert isinstance(site.drop, Driven) and site.drop.values[0]["p"].dtype == torch.float64


def test_rates_of_heads_do_not_depend_on_the_default_device() -> None:
    """With `torch.set_default_device("cuda")`, a copy from the CPU was pinned that was not on the CPU."""
    attachment = attach(encoder(1), ad.DropKey(PerHead([0.1, Linear(0.0, 0.4)])))
    torch.set_default_device("meta")
    try:
        attachment.set_progress(0.5)
    finally:
        torch.set_default_device(None)
    assert attachment.rates() == {"layers.0.self_attn": {"dropkey.p": pytest.approx([0.1, 0.2])}}


@pytest.mark.no_cover
@needs_compiler
def test_a_schedule_never_recompiles() -> None:
    torch._dynamo.reset()
    model = encoder(2)
    attachment = attach(model, "hard(p=linear(start=0.0,end=0.5),k=2)+blur(sigma_max=linear(start=0.0,end=1.0))")
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x = torch.randn(2, 5, 16)
    outputs = []
    for progress in (0.0, 0.3, 0.6, 1.0):
        attachment.set_progress(progress)
        torch.manual_seed(1)
        outputs.append(compiled(x))
        torch.manual_seed(1)
        torch.testing.assert_close(outputs[-1], model(x))
    assert counter.frame_count == 1
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(outputs))


@pytest.mark.parametrize(
    "rate, kernel",
    [
        (0.1, "flash"),
        (Linear(0.0, HIGHEST_RATE), "flash"),
        (Linear(0.0, 0.16), ""),
        (Depth(0.1, Linear(0.0, 0.2)), ""),
        (ad.EntropyTarget(0.5, high=0.3), ""),
    ],
    ids=str,
)
def test_the_path_is_chosen_by_what_a_rate_never_exceeds(rate: Any, kernel: str, monkeypatch: Any) -> None:
    """Whatever it is now: nothing waits for a tensor."""
    chosen: list[str] = []
    choose = dispatch.amending_kernel

    def amending_kernel(call: Any, leaf: Any) -> str:
        chosen.append(choose(call, leaf))
        return ""  # there is none for a CPU

    monkeypatch.setattr(dispatch, "amending_kernel", amending_kernel)
    monkeypatch.setattr(dispatch.library_attention, "choose", lambda q, k, v: "flash")
    monkeypatch.setattr(dispatch.amended_hard, "FEWEST_KEYS", 8)
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    for spec in (ad.HardMasking(p=rate, k=3), ad.OneOf([ad.HardMasking(p=rate, k=3), ad.BlurSmoothing(width=1)])):
        with attach(layer, spec, backend="fused"):
            x = torch.randn(2, 8, 16)
            layer(x, x, x, need_weights=False)
    assert chosen == [kernel, kernel]


class TestSharedCode:
    """What compiled code depends on is the same for specs that differ in their rates alone."""

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("hard(p=linear(start=0.0,end=0.1))", "hard(p=linear(start=0.02,end=0.15))"),
            ("hard(p=constant(value=0.2))", "hard(p=linear(start=0.5,end=0.3))"),
            ("blur(sigma_max=constant(value=0.5))", "blur(sigma_max=constant(value=2.0))"),
            ("noise(sigma=constant(value=0.2))+hard(p=0.1)", "noise(sigma=constant(value=1.2))+hard(p=0.1)"),
        ],
    )
    def test_rates_are_in_tensors_alone(self, one: str, other: str) -> None:
        layer = nn.Linear(2, 2)
        first, second = (driven_at(ad.parse(text), 0.5, 0, 1, layer, None) for text in (one, other))
        assert (first.spec, first.bounds) == (second.spec, second.bounds)
        assert first.values != second.values

    def test_the_limit_of_a_path_is_a_step_of_the_bounds(self) -> None:
        assert HIGHEST_RATE in STEPS
        low, high = (
            driven_at(ad.parse(f"hard(p=constant(value={p}))"), 0, 0, 1, nn.Linear(2, 2), None) for p in (0.15, 0.16)
        )
        assert low.bounds.of(0, "p") == HIGHEST_RATE < high.bounds.of(0, "p")

    def test_a_bound_is_not_read_where_no_path_depends_on_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compiled code depends on all numbers that were read."""
        monkeypatch.setattr(Bounds, "of", lambda *args: pytest.fail("read"))
        layer, x = torch.nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(2, 64, 16)
        with attach(layer, "hard(p=constant(value=0.1),k=3)", backend="fused"):
            layer(x, x, x, need_weights=False)

    def test_values_move_in_place_for_all_heads(self) -> None:
        spec, layer = ad.parse("noise(sigma=heads(values=[0.1,linear(start=0.0,end=2.0)]))"), nn.Linear(2, 2)
        before = driven_at(spec, 0.0, 0, 1, layer, None)
        tensor = before.values[0]["sigma"]
        assert driven_at(spec, 0.5, 0, 1, layer, before) is before and before.values[0]["sigma"] is tensor
        assert tensor.tolist() == pytest.approx([0.1, 1.0])


@pytest.mark.parametrize("heads, rates", [(1, [0.1, 0.2, 0.3]), (3, [0.2]), (4, [0.1, 0.2, 0.3])])
def test_there_is_a_rate_for_each_head(heads: int, rates: list[float]) -> None:
    """Other numbers would be spread over the heads, or would even make more heads."""
    q, message = (
        torch.randn(2, heads, 6, 8),
        rf"p: expected a rate for each of {heads} heads, received '{len(rates)} in",
    )
    for spec in (ad.DropKey(PerHead(rates)), ad.DropHead(PerHead(rates))):
        with pytest.raises(ad.AttentionDropError, match=message):
            attention(q, q, q, spec)
        with pytest.raises(ad.AttentionDropError, match=message):
            AttentionDrop(spec)(q @ q.mT)
