"""Every mode gives the loss and the gradients of explicit passes with the same draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from consistency_models import BATCH, CASES, SHARED_CALL, SPEC, Case, Classifier, build
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attach, consistency_loss, functional, views
from attentiondrop.torch.attach import attend as stacked
from attentiondrop.torch.call import leaves
from attentiondrop.torch.consistency.loss import check_varies
from attentiondrop.torch.consistency.stacked_batch import is_batched, is_folded
from attentiondrop.torch.draws import Stream, Words, draw_seed, group_seed
from attentiondrop.torch.eager import attention as eager
from attentiondrop.torch.eager import table

Gradients = dict[str, Tensor]


@contextmanager
def replaced(module: Any, draw: Callable[..., Tensor]) -> Iterator[None]:
    before = module.draw_seed
    module.draw_seed = draw
    try:
        yield
    finally:
        module.draw_seed = before


@contextmanager
def draws_of(view: int, views: int) -> Iterator[None]:
    """Within, a call gets the draws of one view of a larger call: one part of the draws for so many more samples."""

    class Part(Stream):
        def words(self, batch: int, *rest: int) -> Words:
            whole = super().words(views * batch, *rest)
            return whole._replace(line=whole.line.chunk(views)[view])

        def below(self, shape: tuple[int, int, int, int], rate: float | Tensor) -> Tensor:
            return self.words(*shape).below(rate)

        def uniform_vector(self, length: int) -> Tensor:
            return super().uniform_vector(views * length).chunk(views)[view]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaves, "Stream", Part)
        patch.setattr(eager, "Stream", Part)
        patch.setattr(table, "is_at_hand", lambda seed: False)  # a short way past the stream
        patch.setattr(functional, "known_run", lambda signature: None)  # and another one
        yield


def call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def task_of(case: Case) -> Callable[[Any], Tensor]:
    """Cross entropy with labels that depend on the shape alone."""

    def task(output: Any) -> Tensor:
        logits = case.logits(output).flatten(0, -2)
        labels = torch.arange(len(logits)) % logits.shape[-1]
        return F.cross_entropy(logits, labels)

    return task


def expected_loss(case: Case, outputs: list[Any], consistency: ad.Consistency) -> Tensor:
    """The definition, written with torch's own KL."""
    logs = [F.log_softmax(case.logits(output), -1) for output in outputs]
    mask = case.mask()

    def kl(a: Tensor, b: Tensor) -> Tensor:
        terms = F.kl_div(b, a, log_target=True, reduction="none").sum(-1)
        return terms.mean() if mask is None else terms[mask != 0].mean()

    pairs = [(a, b) for i, a in enumerate(logs) for b in logs[i + 1 :]]
    forward, reverse = sum(kl(a, b) for a, b in pairs), sum(kl(b, a) for a, b in pairs)
    total = {"forward": forward, "reverse": reverse, "symmetric": (forward + reverse) / 2}[consistency.direction]
    chosen = outputs if consistency.task == "mean" else outputs[:1]
    return sum(map(task_of(case), chosen)) / len(chosen) + consistency.weight * total / len(pairs)


def gradients(model: nn.Module, loss: Tensor) -> Gradients:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def check(case: Case, model: nn.Module, mode: str, consistency: ad.Consistency, in_one_call: bool = False) -> None:
    seeds: list[Tensor] = []

    def recorded(like: Tensor, *rest: Any) -> Tensor:
        seeds.append(draw_seed(like, *rest))
        return seeds[-1]

    with replaced(functional if mode == "sequential" else stacked, recorded):
        result = consistency_loss(
            model, case.inputs(), task_of(case), consistency, mode, logits=case.logits, mask=case.mask()
        )
    found = gradients(model, result.loss)

    sites = len(seeds) // consistency.views if mode == "sequential" else len(seeds)
    outputs = []
    for view in range(consistency.views):
        if mode == "sequential":
            queue = iter(seeds[view * sites : (view + 1) * sites])
        else:
            queue = iter(seeds if in_one_call else [group_seed(seed, view) for seed in seeds])
        parts = draws_of(view, consistency.views) if in_one_call else nullcontext()
        with replaced(functional, lambda *args: next(queue)), parts:
            outputs.append(call(model, case.inputs()))
        assert next(queue, None) is None, "a pass has fewer draws than sites"
    loss = expected_loss(case, outputs, consistency)
    close(result.loss, loss)
    assert torch.equal(result.loss, result.task + consistency.weight * result.divergence)
    assert result.divergence > 1e-4, "the views do not differ"
    assert len(result.outputs) == consistency.views
    for ours, theirs in zip(result.outputs, outputs, strict=True):
        close(case.logits(ours), case.logits(theirs))
    expected = gradients(model, loss)
    assert found.keys() == expected.keys()
    for name in expected:
        close(found[name], expected[name])


@pytest.mark.no_cover
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["batch", "sequential", "shared"])
def test_every_mode_is_explicit_passes(name: str, mode: str) -> None:
    case, model = CASES[name], build(name)
    attach(model, {case.late: SPEC} if mode == "shared" else SPEC)
    check(case, model, mode, ad.Consistency(weight=0.7))


@pytest.mark.no_cover
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["batch", "shared"])
def test_views_that_share_a_call_are_explicit_passes(name: str, mode: str) -> None:
    """A call for all views makes as many draws as it has samples; what is drawn once for a call, once for each view."""
    case, model = CASES[name], build(name)
    attach(model, {case.late: SHARED_CALL} if mode == "shared" else SHARED_CALL)
    check(case, model, mode, ad.Consistency(weight=0.7), in_one_call=True)


@pytest.mark.no_cover
@pytest.mark.parametrize("mode", ["batch", "shared"])
@pytest.mark.parametrize("name", ["encoder", "t5 both"])
def test_three_views_symmetric_mean(name: str, mode: str) -> None:
    case, model = CASES[name], build(name)
    attach(model, {case.late: SPEC})
    check(case, model, mode, ad.Consistency(weight=1.3, views=3, direction="symmetric", task="mean"))


@pytest.mark.parametrize("name", CASES)
def test_what_comes_before_the_first_site_runs_once(name: str) -> None:
    """Count the rows that every block sees."""
    case, model = CASES[name], build(name)
    attach(model, {case.late: "dropkey(p=0.3)"})
    rows: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 2:
            for block in module if len({type(block) for block in module}) == 1 else ():
                block.register_forward_hook(
                    lambda _, args, out: rows.append((out if isinstance(out, Tensor) else out[0]).shape[0])
                )
    consistency_loss(model, case.inputs(), task_of(case), ad.Consistency(views=3), "shared", logits=case.logits)
    assert rows == [BATCH] * case.shared + [3 * BATCH] * (len(rows) - case.shared)
    assert len(rows) > case.shared


def test_a_batch_of_one() -> None:
    model = build("bert tokens")
    attach(model, {"*.layer.3.*": "hard(p=0.5,k=3)"})
    inputs = {name: x[1:2] for name, x in CASES["bert tokens"].inputs().items()}
    losses = []
    for mode in ("batch", "shared"):
        torch.manual_seed(3)
        result = consistency_loss(model, inputs, lambda out: out.logits.square().mean(), ad.Consistency(), mode)
        losses.append(result.loss)
    close(*losses)


def test_draws_of_views_and_modes() -> None:
    """The same seed: the same views from both ways of stacking, three different ones, and not those of one call."""
    model = build("encoder")
    attach(model, {"encoder.layers.3.*": ad.BlurSmoothing(sigma_max=2.0)})
    results = []
    for mode in ("batch", "shared"):
        torch.manual_seed(1)
        result = consistency_loss(
            model, CASES["encoder"].inputs(), lambda out: out.mean(), ad.Consistency(views=3), mode
        )
        results.append(result.outputs)
    for one, other in zip(*results, strict=True):
        close(one, other)
    a, b, c = results[0]
    assert not torch.allclose(a, b) and not torch.allclose(b, c) and not torch.allclose(a, c)


def test_a_list_of_parts_of_different_classes_is_no_list_of_layers() -> None:
    """The outermost element would be the whole encoder, all layers of which would run for each view."""
    encoder = Classifier().encoder
    model, rows = nn.Sequential(encoder, nn.Linear(16, 5)), []
    for layer in encoder.layers:
        layer.register_forward_hook(lambda _, args, out: rows.append(len(out)))
    attach(model, {"0.layers.2.*": "dropkey(p=0.3)"})
    views(model, torch.randn(3, 7, 16), mode="shared")
    assert rows == [3, 3, 6, 6]


class Block(nn.Module):
    """Its parameters have no names."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, shift = inputs
        return x + shift + self.attention(x, x, x, need_weights=False)[0]


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, mask.sum((-2, -1))[:, None, None])
        return x


@pytest.mark.parametrize("mode", ["batch", "shared"])
def test_arguments_without_names_and_masks_of_samples_are_repeated(mode: str) -> None:
    """The mask [batch, rows, keys] has as many rows as there are samples, but it is not one mask for all of them."""
    model, x, mask = Shifted(), torch.randn(4, 4, 8), torch.arange(64.0).view(4, 4, 4)
    plain = model(x, mask)
    attach(model, ad.HardMasking(p=0.0, k=1))
    found = views(model, {"x": x, "mask": mask}, mode=mode)
    assert len(found) == 2
    for view in found:
        torch.testing.assert_close(view, plain)


class Probing(Shifted):
    """Its first block runs without gradients, as in the forward of a reentrant checkpoint."""

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        with torch.no_grad():
            self.blocks[0](x, shift)
        return self.blocks[1](x, shift)


@pytest.mark.parametrize("mode", ["batch", "shared"])
def test_what_was_repeated_without_gradients_is_repeated_again_with_them(mode: str) -> None:
    model, x, shift = Probing(), torch.randn(3, 4, 8), torch.randn(3, 1, 1, requires_grad=True)
    attach(model, ad.HardMasking(p=0.0, k=1))
    found = torch.autograd.grad(sum(view.sum() for view in views(model, (x, shift), mode=mode)), shift)[0]
    torch.testing.assert_close(found, torch.autograd.grad(2 * model(x, shift).sum(), shift)[0])


def test_what_holds_the_batch() -> None:
    """Positions and rotations may be as many as there are samples, and belong to all of them."""
    assert is_batched("x", torch.zeros(4), 4) and not is_batched("x", torch.zeros(3), 4)
    assert not is_batched("cache_position", torch.zeros(4), 4) and not is_batched("rope", torch.zeros(4, 8), 4)
    assert is_batched("attn_mask", torch.zeros(4, 5), 4) and not is_batched("attn_mask", torch.zeros(4, 4), 4)
    assert is_batched("attn_mask", torch.zeros(4, 5, 5), 4) and not is_folded("attn_mask", torch.zeros(4, 5, 5), 4)
    assert is_folded("attn_mask", torch.zeros(8, 5, 5), 4) and not is_folded("attn_mask", torch.zeros(6, 5, 5), 4)
    assert not is_folded("x", torch.zeros(8, 5, 5), 4)


def test_two_equal_views_of_three_are_no_error() -> None:
    """Randomness that is not known may act seldom."""
    one, other = torch.rand(2, 2, 3)
    check_varies(nn.Linear(2, 3), [one, one, other])
    with pytest.raises(ad.ArgumentError, match="views are identical"):
        check_varies(nn.Linear(2, 3), [one, one, one])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The size of the batch and the groups of each attention call that sites make."""
    found, inner = [], stacked.perturbed_attention

    def noted(query: Tensor, *args: Any, **kwargs: Any) -> Any:
        found.append((len(query), args[8] if len(args) > 8 else 1))
        return inner(query, *args, **kwargs)

    monkeypatch.setattr(stacked, "perturbed_attention", noted)
    return found


@pytest.mark.parametrize(
    ("spec", "calls", "groups"),
    [
        (ad.presets.plain(), 1, 1),
        ("hard(p=0.5,k=3)", 1, 2),
        ("blur(sigma_max=2.0)", 1, 2),
        ("blur(sigma_max=2.0,sampling=sample)+drophead(p=0.2)", 1, 2),
        ("blur(sigma_max=2.0,sampling=head)", 2, 1),
        ("oneof(hard(p=0.5,k=3),blur(sigma_max=2.0))", 2, 1),
        ("hard(p=entropy(target=0.9),k=3)", 2, 1),
    ],
)
def test_views_share_a_call_unless_it_draws_more_than_a_sigma_for_all(
    made: list[tuple[int, int]], spec: Any, calls: int, groups: int
) -> None:
    """Without any draws in the attention, the dropout of hidden states makes the views differ."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
    layer.self_attn.dropout = 0.0
    attach(layer, spec)
    first, second = views(layer, torch.randn(3, 5, 16))
    assert made == [(6 // calls, groups)] * calls and not torch.equal(first, second)


class WithoutHeads(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def test_views_of_queries_without_heads_share_no_call(made: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(3, 5, 8), nn.Sequential(WithoutHeads())
    attach(model, "blur(sigma_max=2.0)", example=x)
    made.clear()
    first, second = views(model, x)
    assert made == [(3, 1)] * 2 and not torch.equal(first, second)


class Remembering(nn.Module):
    """Attends to what was kept before the batch was repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        memory = x if self.kept is None else self.kept
        mask = memory.new_zeros(len(memory), 1, 1, memory.shape[1])
        return F.scaled_dot_product_attention(x[:, None], memory[:, None], memory[:, None], mask)[:, 0]


def test_without_draws_every_view_is_the_plain_output() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Remembering(), Remembering())
    x = torch.randn(3, 5, 8)
    attach(model, ad.presets.plain(), example=x)
    model[1].kept = torch.randn(3, 4, 8)
    expected = model(x)
    for view in views(model, x, mode="shared"):
        torch.testing.assert_close(view, expected, rtol=1e-5, atol=1e-5)
