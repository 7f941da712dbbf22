"""The kernels for short rows against the oracle with identical draws, on a GPU."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from parity import Case
from torch.nn import functional as F
from worst import Worst

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch import attach, attention, dispatch, functional
from attentiondrop.torch.fused import repeated_short

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ad.AttentionDropWarning)  # extreme rates are part of the test
    SPECS: list[Spec] = [
        ad.HardMasking(p=0.4, k=5),
        ad.DropKey(p=0.4),
        ad.BlurSmoothing(sigma_max=1.0),
        ad.AttentionDropout(p=0.3),
        ad.HardMasking(p=0.6, k=3, fill="-inf"),
        ad.HardMasking(p=1.0, k=12),
        ad.BlurSmoothing(sigma_max=1.5, width=17, edges="renormalize", sampling="sample"),
        ad.HardMasking(p=0.4, k=300),
        ad.HardMasking(p=0.5, k=40),
        ad.BlurSmoothing(sigma_max=1.0, width=3, sampling="head"),
        ad.Compose([ad.HardMasking(p=0.4, k=5), ad.AttentionDropout(p=0.3)]),
        ad.DropKey(p=0.4, by="column"),
        ad.DropAttention(p=0.5),
        ad.DropAttention(p=0.4, by="column", span=3),
    ]
    #: What is tested in all situations, beside the first of `SPECS`.
    OTHERS: list[Spec] = [
        *SPECS[10:],
        ad.presets.plain(),
        ad.Compose([ad.BlurSmoothing(sigma_max=1.0), ad.DropKey(p=0.4), ad.AttentionDropout(0.2)]),
        # (A blur of 0: a real one rounds the keys to 16 bits, and then another logit may come k-th.)
        ad.Compose([ad.BlurSmoothing(0.0), ad.HardMasking(p=0.5, k=3, fill="-inf"), ad.AttentionDropout(0.2)]),
        ad.Compose(
            [ad.BlurSmoothing(2.0, width=9, edges="renormalize", sampling="sample"), ad.DropAttention(p=0.3, span=2)]
        ),
        ad.DropAttention(p=0.95),
    ]
SIZES = (64, 16, 32, 128)
DTYPES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def only_this_path(taken_paths: set[str]) -> Iterator[None]:
    """A test takes this path and no other, apart from SDPA, which `Worst` compares with."""
    yield
    assert taken_paths - {"sdpa"} == {"short rows"}


@pytest.mark.parametrize("turn", [0, *[pytest.param(turn, marks=pytest.mark.slow) for turn in range(1, len(SPECS))]])
@pytest.mark.parametrize("tiles", range(1, 17))
def test_every_length(tiles: int, turn: int) -> None:
    """All lengths of a number of tiles with one spec, so that each test compiles one pair of kernels."""
    spec = SPECS[(tiles + turn) % len(SPECS)]
    size, dtype = SIZES[(tiles // 4 + turn) % len(SIZES)], DTYPES[(tiles + turn // 2) % 2]
    worst = Worst()
    for length in range(16 * tiles - 15, 16 * tiles + 1):
        case = Case(f"{length}", 2, 2, 2, length, length, size, size, seed=length)
        (worst.add if length % 5 in (0, 1) else worst.add_known)(spec, case, dtype, "cuda")
        if length % 5 > 1:
            one_call(spec, case, dtype)
    worst.check()


def one_call(spec: Spec, case: Case, dtype: torch.dtype) -> None:
    """Nothing is left unwritten: memory is full of NaN before."""
    inputs, grad, options = case.make(dtype, "cuda")
    output = attention(*inputs, spec, backend="fused", **options)
    output.backward(grad)
    assert all(bool(x.isfinite().all()) for x in (output, *(x.grad for x in inputs if x.grad is not None)))


#: Rows and keys that differ, heads that share keys, masks, scales.
SITUATIONS = [
    Case("cross, more keys", rows=20, columns=150),
    Case("cross, more rows than a run", rows=300, columns=70),
    Case("one row", rows=1, columns=90),
    Case("one key", rows=40, columns=1, seed=15),
    Case("grouped", heads=6, key_heads=2, rows=50, columns=50),
    Case("grouped, long", heads=4, key_heads=2, rows=197, columns=197),
    Case("scale", rows=40, columns=40, options={"scale": 0.7}),
    Case("key padding", rows=70, columns=70, mask="keys"),
    Case("key padding, blind sample", rows=33, columns=130, mask="blind sample"),
]
CAUSAL = [
    Case("causal", is_causal=True, rows=65, columns=65),
    Case("causal, more keys", is_causal=True, rows=20, columns=33),
    Case("causal, more rows", is_causal=True, rows=70, columns=20),
    Case("causal, grouped", is_causal=True, heads=4, key_heads=2, rows=140, columns=140),
]


@pytest.mark.parametrize("size", [64, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", SPECS[:6] + OTHERS, ids=str)
def test_situations(spec: Spec, size: int) -> None:
    worst = Worst()
    for case in SITUATIONS + CAUSAL:
        worst.add(spec, replace(case, size=size, value_size=size), torch.bfloat16, "cuda")
    worst.check()


@pytest.mark.parametrize("spec", [ad.DropKey(p=0.3), ad.HardMasking(p=0.5, k=3), ad.DropAttention(p=0.3)], ids=str)
def test_dropout_p_after_a_drop(spec: Spec) -> None:
    worst = Worst()
    for case in (SITUATIONS[0], CAUSAL[0], Case("long", rows=256, columns=256, is_causal=True)):
        worst.add(spec, replace(case, size=64, value_size=64), torch.bfloat16, "cuda", dropout_p=0.2)
    worst.check()


#: k -> lengths at which the keys lie in fewer than k groups, and at last one at which there are enough.
FEW_GROUPS = {5: (6, 8, 9), 10: (17, 19), 12: (33, 38, 39), 16: (54, 55)}


@pytest.mark.parametrize("top", FEW_GROUPS)
def test_rows_with_fewer_groups_than_k(top: int) -> None:
    """The kernels look for the k largest logits among the largest of each group of keys; the last keys fill no group."""
    worst = Worst()
    for length in FEW_GROUPS[top]:
        case = Case(f"{length}", 2, 2, 2, length, length, 64, 64, seed=length)
        worst.add(ad.HardMasking(p=0.5, k=top), case, torch.bfloat16, "cuda")
    worst.check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_lose_all_of_few_keys(dtype: torch.dtype) -> None:
    """With p = 1 and k = 12, the first rows lose every key that they see, and logits far above 0 become 0."""
    worst = Worst()
    for seed in (5, 6):
        sizes = {"rows": 20, "columns": 33, "size": 64, "value_size": 64}
        worst.add(SPECS[5], Case("causal", is_causal=True, options={"scale": 1.0}, seed=seed, **sizes), dtype, "cuda")
    worst.check()


def layouts(x: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Queries, keys and values [3, B, H, N, D] in the memory orders that models have."""
    yield tuple(x)
    yield tuple(x.transpose(2, 3).contiguous().transpose(2, 3))  # [B, N, H, D]
    packed = x.permute(1, 3, 0, 2, 4).contiguous()  # [B, N, 3, H, D], as a joint projection gives it
    yield packed.permute(2, 0, 3, 1, 4).unbind(0)
    odd = torch.zeros(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view_as(x).copy_(x)  # not aligned
    yield tuple(odd)


def test_layouts_do_not_matter() -> None:
    x = torch.randn(3, 2, 4, 50, 64, device="cuda", dtype=torch.bfloat16)
    grad = torch.randn(2, 4, 50, 64, device="cuda", dtype=torch.bfloat16)
    found = []
    for tensors in layouts(x):
        q, k, v = (t.detach().requires_grad_() for t in tensors)
        torch.manual_seed(3)
        output = attention(q, k, v, ad.HardMasking(p=0.3, k=4), backend="fused")
        found.append((output, *torch.autograd.grad(output, (q, k, v), grad)))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert torch.equal(one, other)


#: (The blur has a sigma for each sample: two that are both near 0 would give the same result in 16 bits.)
DIFFER = [ad.HardMasking(p=0.3, k=4), ad.BlurSmoothing(2.0, sampling="sample"), ad.AttentionDropout(0.2)]


@pytest.mark.parametrize("spec", DIFFER, ids=str)
def test_equal_results_in_every_run_and_fresh_draws_in_every_replay(spec: Spec) -> None:
    q, k, v, grad = (torch.randn(8, 6, 197, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))

    def run() -> list[torch.Tensor]:
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        output = attention(*inputs, spec, backend="fused")
        return [output, *torch.autograd.grad(output, inputs, grad)]

    torch.manual_seed(1)
    first = run()
    torch.manual_seed(1)
    for one, other in zip(first, run(), strict=True):
        assert torch.equal(one, other)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    replays = []
    for _ in range(3):
        graph.replay()
        replays.append([x.clone() for x in captured])
    assert not torch.equal(replays[0][0], replays[1][0])
    assert not torch.equal(replays[1][0], replays[2][0])


def test_compiled_attention_has_the_same_draws() -> None:
    q, k, v, grad = (torch.randn(2, 3, 65, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    call = torch.compile(lambda *x: attention(*x, ad.HardMasking(p=0.3, k=4), backend="fused"), fullgraph=True)
    found = []
    for function in (call, lambda *x: attention(*x, ad.HardMasking(p=0.3, k=4), backend="fused")):
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.manual_seed(2)
        output = function(*inputs)
        found.append([output, *torch.autograd.grad(output, inputs, grad)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("launches", [300, pytest.param(100_000, marks=pytest.mark.slow)])
def test_soak(launches: int) -> None:
    """Random sizes one after the other: nothing hangs, and nothing is left unwritten. (The warm kernels take turns.)"""
    chosen = random.Random(0)
    specs = [SPECS[0], SPECS[3]]
    for _ in range(launches // 2):
        batch, heads = chosen.choice([(1, 1), (3, 5), (16, 12), (40, 7)])
        length = chosen.choice([1, 15, 16, 17, 64, 65, 100, 128, 197, 208])
        q, k, v, grad = (torch.randn(batch, heads, length, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        inputs = [x.requires_grad_() for x in (q, k, v)]
        output = attention(*inputs, chosen.choice(specs), backend="fused")
        found = torch.autograd.grad(output, inputs, grad)
        assert bool(torch.stack([x.isfinite().all() for x in (output, *found)]).all())


def test_second_derivatives_are_refused() -> None:
    q, k, v = (torch.randn(1, 1, 20, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    output = attention(q, k, v, ad.HardMasking(p=0.3, k=4), backend="fused")
    (first,) = torch.autograd.grad(output.float().square().sum(), q, create_graph=True)
    with pytest.raises(ad.BackendError, match="no second derivative"):
        first.sum().backward()


def test_a_call_that_is_known_does_not_hide_bad_input() -> None:
    q, k, v = (torch.randn(1, 4, 20, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    few = k[:, :2]
    for _ in range(2):
        attention(q, k, v, ad.HardMasking(p=0.3, k=4), backend="fused")
        attention(q, few, v[:, :2], ad.HardMasking(p=0.3, k=4), enable_gqa=True, backend="fused")
    with pytest.raises(ad.AttentionDropError, match="the dtype of query"):
        attention(q, k.float(), v, ad.HardMasking(p=0.3, k=4), backend="fused")
    with pytest.raises(ad.AttentionDropError, match="heads differ"):
        attention(q, few, v[:, :2], ad.HardMasking(p=0.3, k=4), backend="fused")


class Inner(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)


@pytest.mark.parametrize("spec", [ad.HardMasking(p=0.3, k=4), ad.BlurSmoothing(0.5)], ids=str)
def test_modules_repeat_their_calls(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under autocast, as models are trained. The first call looks for its path, later ones know it."""
    model = torch.nn.Sequential(Inner())
    attach(model, spec)
    q, k, v, grad = (torch.randn(2, 3, 65, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    looked_for = []
    monkeypatch.setattr(functional, "choose", lambda *args: looked_for.append(args) or dispatch.choose(*args))
    monkeypatch.setattr(repeated_short, "_known", {})
    found = []
    for _ in range(2):
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.manual_seed(4)
        with torch.autocast("cuda", torch.bfloat16):
            output = model[0](*inputs)
        found.append([output, *torch.autograd.grad(output, inputs, grad)])
    assert len(looked_for) == 1
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
