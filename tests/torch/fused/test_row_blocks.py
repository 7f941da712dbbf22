"""The blockwise CPU path against the oracle with identical draws, with blocks of every kind."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from parity import CASES, Case, numpy_draws, relative_error, to_numpy
from test_parity import DTYPES, dtypes_of, tolerance
from torch import Tensor

import attentiondrop as ad
from attentiondrop import reference
from attentiondrop.specs import Spec
from attentiondrop.torch import attention
from attentiondrop.torch.call.decisions import Decisions
from attentiondrop.torch.call.leaves import DROPOUT_STREAM, Active, LogitShape
from attentiondrop.torch.call.stages import WeightDrop
from attentiondrop.torch.call.visibility import split
from attentiondrop.torch.draws import draw_seed
from attentiondrop.torch.fused import row_blocks
from attentiondrop.torch.fused.largest_of_rows import largest
from attentiondrop.torch.fused.slots import weight_drop_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ad.AttentionDropWarning)  # extreme rates are part of the test
    SPECS: list[Spec] = [
        *(ad.HardMasking(p=p, k=k) for p, k in ((0.0, 3), (0.1, 5), (0.5, 3), (0.5, 1), (0.5, 100), (1.0, 3))),
        *(ad.HardMasking(p=p, k=k, fill="-inf") for p, k in ((0.1, 5), (0.5, 1), (0.5, 100), (1.0, 3), (1.0, 100))),
        *(ad.DropKey(p) for p in (0.0, 0.1, 0.5, 1.0)),
        *(ad.GaussianNoise(sigma) for sigma in (0.0, 0.7)),
        *(ad.AttentionDropout(p) for p in (0.1, 0.5, 1.0)),
        *(ad.DropKey(p, by="column") for p in (0.5, 1.0)),
        *(ad.DropAttention(p, span=span) for p, span in ((0.5, 1), (0.4, 2), (1.0, 1))),
        ad.DropAttention(0.5, by="column", span=4),
        ad.Compose([ad.HardMasking(p=0.5, k=3, fill="-inf"), ad.DropAttention(0.5)]),
        ad.Compose([ad.GaussianNoise(0.5), ad.HardMasking(p=0.5, k=3), ad.AttentionDropout(0.1)]),
        ad.Compose([ad.GaussianNoise(0.5), ad.DropKey(0.5), ad.AttentionDropout(0.5)]),
    ]
    NARROW = [SPECS[1], SPECS[6], SPECS[12], SPECS[16], SPECS[17], SPECS[20], *SPECS[22:24], *SPECS[-2:]]
PLAIN = [case for case in CASES if not {"softcap", "sinks"} & case.options.keys()]
#: Logits in a block of most cases: everything, a sample, two heads, a few rows (ragged).
BUDGETS = [2**20, 330, 200, 45]


def budget_of(place: int, number: int) -> int:
    """Walks through the budgets so that each case meets each of them in some dtype or spec."""
    return BUDGETS[(place + number) % len(BUDGETS)]


class Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        output, lse = row_blocks.blockwise_forward(q, k, v, Decisions(*rest))
        ctx.save_for_backward(q, k, v)
        ctx.rest = rest
        ctx.mark_non_differentiable(lse)
        return output, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        gradients = row_blocks.blockwise_backward(grad, *ctx.saved_tensors, Decisions(*ctx.rest))
        return (*gradients, *(None for _ in ctx.rest))


def run(
    inputs: list[Tensor],
    spec: Spec | None,
    seed: Tensor,
    gates: Tensor | None = None,
    attn_mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The blockwise functions on what `attention` takes."""
    rates, streams, drop, top, dropout = [0.0] * 4, [-1] * 4, "", 1, WeightDrop()
    for number, leaf in enumerate([] if spec is None else spec.leaves()):
        if isinstance(leaf, ad.GaussianNoise):
            rates[0], streams[0] = leaf.sigma, number
        elif isinstance(leaf, ad.HardMasking):
            rates[1], streams[1], drop, top = leaf.p, number, leaf.fill, leaf.k
        elif isinstance(leaf, ad.DropKey):
            rates[1], streams[1], drop = leaf.p, number, "key" if leaf.by == "element" else "column"
        else:
            rates[2], streams[2] = leaf.p, number
            dropout = weight_drop_of(Active(leaf, seed, number), inputs[1].shape[2])
    if dropout_p > 0:
        rates[3], streams[3] = dropout_p, DROPOUT_STREAM
    visible, shift = split(attn_mask)
    bias = shift if bias is None else bias if shift is None else bias + shift
    scale = inputs[0].shape[-1] ** -0.5 if scale is None else scale
    numbers = rates, streams, drop, top, is_causal, scale
    return Blockwise.apply(*inputs, visible, bias, seed, gates, *numbers, None, None, None, False, dropout)


def drawn(seed: int) -> Tensor:
    """The seed of the first call after `torch.manual_seed(seed)`."""
    torch.manual_seed(seed)
    return draw_seed(torch.zeros(1))


def expected(
    inputs: list[Tensor], grad: Tensor, spec: Spec | None, options: dict[str, Any], dropout_p: float = 0.0
) -> tuple[reference.Result, list[np.ndarray]]:
    """What the oracle says: the result, and output and gradients in one list."""
    shape = LogitShape(*inputs[0].shape[:3], inputs[1].shape[2])
    draws, dropout_draws = (None, None) if spec is None else numpy_draws(spec, 5, shape)
    known = dict(options)
    mask = known.pop("attn_mask", None)
    if mask is not None and mask.dtype != torch.bool:
        mask = torch.where(mask > torch.finfo(mask.dtype).min / 2, mask.double(), -torch.inf)
    result = reference.attention(
        *(to_numpy(x) for x in inputs),
        spec,
        draws,
        attn_mask=to_numpy(mask),
        dropout_p=dropout_p,
        dropout_draws=dropout_draws,
        **{name: to_numpy(value) for name, value in known.items()},
    )
    return result, [result.output, *result.gradients(to_numpy(grad))[:3]]


def errors(
    inputs: list[Tensor],
    grad: Tensor,
    spec: Spec,
    options: dict[str, Any],
    want: list[np.ndarray],
    dropout_p: float = 0.0,
    gates: Tensor | None = None,
) -> list[float]:
    """Relative errors of the output and of the gradients of q, k, v."""
    output, _ = run(inputs, spec, drawn(5), gates, dropout_p=dropout_p, **options)
    gradients = torch.autograd.grad(output, inputs, grad)
    assert all(have.dtype == x.dtype for have, x in zip((output, *gradients), (inputs[0], *inputs), strict=True))
    return [relative_error(to_numpy(have), x) for have, x in zip((output, *gradients), want, strict=True)]


def made(case: Case, dtype: torch.dtype) -> tuple[list[Tensor], Tensor, dict[str, Any]]:
    inputs, grad, options = case.make(dtype)
    options.pop("enable_gqa")
    return inputs, grad, options


@pytest.mark.no_cover
@pytest.mark.parametrize("number", range(len(SPECS)), ids=[str(spec) for spec in SPECS])
def test_matches_the_oracle(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPECS[number]
    for place, case in enumerate(PLAIN):
        # Specs that differ in a rate only need no second look in the narrow dtypes.
        dtypes = dtypes_of(NARROW.index(spec), place) if spec in NARROW else DTYPES[:1]
        check_against_the_oracle(number, place, case, dtypes, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("spec", NARROW, ids=str)
def test_matches_the_oracle_in_every_dtype(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, case in enumerate(PLAIN):
        check_against_the_oracle(SPECS.index(spec), place, case, DTYPES, monkeypatch)


def check_against_the_oracle(
    number: int, place: int, case: Case, dtypes: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    for dtype in dtypes:
        monkeypatch.setattr(row_blocks, "BUDGET", budget_of(place, number + DTYPES.index(dtype)))
        inputs, grad, options = made(case, dtype)
        found = errors(inputs, grad, SPECS[number], options, expected(inputs, grad, SPECS[number], options)[1])
        assert max(found) <= tolerance(dtype, "eager"), (str(case), dtype, row_blocks.BUDGET, found)


def test_rows_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "BUDGET", 1)
    for case in PLAIN:
        if case.name in {"cross", "grouped", "causal, more keys", "additive with the lowest value"}:
            inputs, grad, options = made(case, torch.float64)
            found = errors(inputs, grad, SPECS[-2], options, expected(inputs, grad, SPECS[-2], options)[1])
            assert max(found) <= tolerance(torch.float64, "eager"), (str(case), found)


@pytest.mark.parametrize("spec", [SPECS[2], SPECS[22], SPECS[-1]], ids=str)
def test_dropout_p_together_with_a_spec(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, case in enumerate(PLAIN):
        for number, dtype in enumerate((torch.float64, torch.bfloat16)):
            monkeypatch.setattr(row_blocks, "BUDGET", budget_of(place, number))
            inputs, grad, options = made(case, dtype)
            found = errors(inputs, grad, spec, options, expected(inputs, grad, spec, options, 0.3)[1], 0.3)
            assert max(found) <= tolerance(dtype, "eager"), (str(case), found)


@pytest.mark.parametrize("spec", [SPECS[-2], SPECS[-1]], ids=str)
def test_gates_switch_each_slot_off(spec: Spec) -> None:
    inputs, grad, options = made(Case("plain"), torch.float64)
    seed = drawn(5)
    for gates in ([1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0], [0.0] * 4):
        noise, drop, dropout = spec.leaves()
        output = run(inputs, spec, seed, torch.tensor(gates, dtype=torch.float64), dropout_p=0.3)[0]
        kept = [
            type(leaf)(**({"sigma": 0.0} if leaf is noise else {"p": 0.0} | _others(leaf))) if gate == 0 else leaf
            for leaf, gate in zip((noise, drop, dropout), gates, strict=False)
        ]
        want = run(inputs, ad.Compose(kept), seed, dropout_p=0.3 * gates[3])[0]
        assert torch.equal(output, want)
    want = expected(inputs, grad, spec, options)[1]
    assert max(errors(inputs, grad, spec, options, want, 0.0, torch.ones(4))) <= tolerance(torch.float64, "eager")


def _others(leaf: Spec) -> dict[str, Any]:
    return {"k": leaf.k, "fill": leaf.fill} if isinstance(leaf, ad.HardMasking) else {}


@pytest.mark.parametrize("budget", [40, 2**20])
def test_ties_go_to_the_lower_key(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers and repeated keys make ties of every kind, in rows that are wide enough for each way to select."""
    monkeypatch.setattr(row_blocks, "BUDGET", budget)
    g = torch.Generator().manual_seed(1)
    for columns, k in ((7, 3), (40, 2), (90, 5), (200, 2)):
        q = torch.randint(-1, 2, (1, 2, 5, 4), generator=g).double().requires_grad_()
        keys = torch.randint(-1, 2, (1, 2, columns, 4), generator=g).double()
        keys[:, :, columns // 2 :] = keys[:, :, : columns - columns // 2]
        keys.requires_grad_()
        v = torch.randn(1, 2, columns, 3, generator=g, dtype=torch.float64, requires_grad=True)
        grad = torch.randn(1, 2, 5, 3, generator=g, dtype=torch.float64)
        visible = torch.rand(1, 2, 5, columns, generator=g) < 0.5
        visible[:, :, 2] = False
        visible[:, :, 3, k:] = False
        for spec in (SPECS[2], SPECS[5], ad.HardMasking(p=0.4, k=k, fill="-inf"), ad.HardMasking(p=0.4, k=k)):
            for options in ({}, {"is_causal": True}, {"attn_mask": visible}):
                want = expected([q, keys, v], grad, spec, options)[1]
                assert max(errors([q, keys, v], grad, spec, options, want)) < 1e-14, (columns, str(spec))


@pytest.mark.parametrize("columns", [8, 60, 71, 130, 400, 1000])
def test_largest_selects_as_the_oracle(columns: int) -> None:
    g = torch.Generator().manual_seed(columns)
    for k in (1, 2, 5, 7):
        for levels in (3, 50, 10**6):
            logits = torch.randint(0, levels, (1, 2, 20, columns), generator=g).float()
            logits[:, :, 3] = -torch.inf
            logits[:, :, 4, k - 1 :] = -torch.inf
            logits[:, :, 5, ::2] = -torch.inf
            with torch.device("meta"):  # where new tensors go by default does not matter
                values, indices = largest(logits, k)
            assert torch.equal(values, logits.gather(-1, indices))
            chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, indices, values > -torch.inf)
            visible = (logits > -torch.inf).numpy()
            assert np.array_equal(chosen.numpy(), reference.top_k(logits.numpy(), visible, k)), (k, levels)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_large_logits_and_blind_rows_give_no_nan(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    for budget in (100, 2**20):
        monkeypatch.setattr(row_blocks, "BUDGET", budget)
        for dtype in DTYPES:
            (q, k, v), grad, _ = made(Case("plain"), dtype)
            inputs = [(200 * q).detach().requires_grad_(), (20 * k).detach().requires_grad_(), v]
            mask = torch.rand(2, 4, 9, 9) < 0.5
            mask[:, :, 3] = False
            output, lse = run(inputs, spec, drawn(5), attn_mask=mask)
            gradients = torch.autograd.grad(output, inputs, grad)
            assert all(x.isfinite().all() for x in (output, lse, *gradients)), dtype
            assert not output[:, :, 3].any() and not lse[:, :, 3].any() and not gradients[0][:, :, 3].any()


@pytest.mark.no_cover
def test_lse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a float64 log-sum-exp of logits that the regularisers perturbed with the same draws."""
    for number, spec in enumerate((None, SPECS[2], SPECS[9], SPECS[14], SPECS[-1])):
        for place, case in enumerate(PLAIN):
            monkeypatch.setattr(row_blocks, "BUDGET", budget_of(place, number))
            inputs, grad, options = made(case, torch.float64)
            output, lse = run(inputs, spec, drawn(5), **options)
            result = expected(inputs, grad, spec, options)[0]
            shape = (*inputs[0].shape[:3], inputs[1].shape[2])
            keys = np.repeat(to_numpy(inputs[1]), shape[1] // inputs[1].shape[1], axis=1)
            logits = (options.get("scale") or 8**-0.5) * (to_numpy(inputs[0]) @ keys.swapaxes(-1, -2))
            visible, shift = split(options.get("attn_mask"))
            for x in (shift, options.get("bias")):
                logits = logits if x is None else logits + to_numpy(x)
            seen = reference.visibility(shape, to_numpy(visible), case.is_causal)
            draws = None if spec is None else numpy_draws(spec, 5, LogitShape(*shape))[0]
            for leaf, draw in reference.chosen_leaves(spec, draws):
                if leaf.level == "logits":
                    logits, seen, _ = reference.perturb_logits(leaf, logits, seen, draw)
            with np.errstate(divide="ignore"):
                want = np.log(np.where(seen, np.exp(logits), 0.0).sum(-1))
            want = np.where(seen.any(-1), want, 0.0)
            assert lse.dtype == torch.float64
            assert np.abs(to_numpy(lse) - want).max() < 1e-13, (str(spec), str(case))
            assert relative_error(to_numpy(output), result.output) < 1e-14
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert run(made(Case("plain"), dtype)[0], SPECS[1], drawn(5))[1].dtype == torch.float32


def test_any_layout_of_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors as a projection leaves them, [B, N, H, D], expanded masks, and gradients of any stride."""
    monkeypatch.setattr(row_blocks, "BUDGET", 50)
    spec = SPECS[2]
    (q, k, v), grad, _ = made(Case("grouped", heads=6, key_heads=2), torch.float64)
    mask = (torch.rand(2, 1, 1, 9) < 0.6).expand(2, 6, 9, 9)
    bias = torch.randn(1, 6, 1, 1, dtype=torch.float64).expand(2, 6, 9, 9)
    plain = run([q, k, v], spec, drawn(5), attn_mask=mask.contiguous(), bias=bias.contiguous())[0]
    want = torch.autograd.grad(plain, [q, k, v], grad)
    turned = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    output = run(turned, spec, drawn(5), attn_mask=mask, bias=bias)[0]
    have = torch.autograd.grad(output, turned, grad.transpose(-1, -2).contiguous().transpose(-1, -2))
    # What a fake kernel promises a compiler.
    assert output.transpose(1, 2).is_contiguous()
    rates, streams = [0.0, 0.5, 0.0, 0.0], [-1, 0, -1, -1]
    call = Decisions(None, None, torch.tensor(1), None, rates, streams, "zero", 3, False, 0.3)
    with torch.no_grad():
        gradients = row_blocks.blockwise_backward(grad, *turned, call)
    for x, y in zip(gradients, turned, strict=True):
        assert x.stride() == torch.empty_like(y).stride()
    for x, y in zip((output, *have), (plain, *want), strict=True):
        assert relative_error(to_numpy(x), to_numpy(y)) < 1e-14


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
def test_nothing_to_attend_to(shape: tuple[int, ...]) -> None:
    batch, heads, rows, columns = shape
    inputs = [torch.randn(batch, heads, n, 5, requires_grad=True) for n in (rows, columns, columns)]
    output, lse = run(inputs, SPECS[1], drawn(5))
    assert output.shape == (batch, heads, rows, 5) and not output.any() and not lse.any()
    assert not any(x.any() for x in torch.autograd.grad(output.sum(), inputs))
    for text in ("dropkey(by=column)", "dropattention(by=column)", "blur+hard", "blur"):
        output = attention(*inputs, text, attn_mask=torch.ones(rows, columns).bool(), backend="fused")
        assert output.shape == (batch, heads, rows, 5) and not output.any()
        assert not any(x.any() for x in torch.autograd.grad(output.sum(), inputs))


def test_equals_eager_for_a_whole_problem() -> None:
    """One block of float32 at the size of a ViT: the eager path's decisions and, but for rounding, its numbers."""
    spec = ad.HardMasking(p=0.5)
    inputs = [x.requires_grad_() for x in torch.randn(3, 1, 2, 197, 32)]
    output = run(inputs, spec, drawn(5))[0]
    torch.manual_seed(5)
    want = attention(*inputs, spec, backend="eager")
    grad = torch.randn_like(output)
    pairs = zip(
        (output, *torch.autograd.grad(output, inputs, grad)),
        (want, *torch.autograd.grad(want, inputs, grad)),
        strict=True,
    )
    for x, y in pairs:
        assert relative_error(to_numpy(x), to_numpy(y)) < 1e-6
