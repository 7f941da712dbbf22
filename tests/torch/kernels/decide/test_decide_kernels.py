"""The attention kernels against the oracle with identical draws.

The bound is twice the error of the eager path in the same dtype (see `Worst` for 16 bits), each at its worst over the same
grid of situations; where eager happens to be nearly exact, twice a quarter of the dtype's eps, which is the root mean square
of one rounding.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from devices import IN_INTERPRETER, ON_GPU, only_on_gpu, slow, slow_on_gpu
from parity import CASES, Case, errors
from worst import Worst, dtypes

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch import attention

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ad.AttentionDropWarning)  # extreme rates are part of the test
    SPECS: list[Spec] = [
        ad.HardMasking(p=0.4, k=3),
        ad.HardMasking(p=0.4, k=5, fill="-inf"),
        ad.HardMasking(p=0.4, k=100),
        ad.HardMasking(p=1.0, k=100, fill="-inf"),
        ad.DropKey(0.6),
        ad.GaussianNoise(0.7),
        ad.AttentionDropout(0.3),
        ad.Compose(
            [
                ad.BlurSmoothing(1.0),
                ad.GaussianNoise(0.5),
                ad.HardMasking(0.4, 2),
                ad.AttentionDropout(0.2),
                ad.DropHead(0.3),
            ]
        ),
        ad.OneOf([ad.HardMasking(p=0.5), ad.BlurSmoothing(1.0), ad.AttentionDropout(0.5)]),
        ad.DropKey(0.6, by="column"),
        ad.DropAttention(0.5),
        ad.Compose([ad.GaussianNoise(0.5), ad.HardMasking(0.4, 2), ad.DropAttention(0.6, by="column", span=3)]),
        ad.Compose([ad.BlurSmoothing(1.0), ad.DropKey(0.5), ad.DropAttention(0.5, span=2), ad.DropHead(0.3)]),
    ]
    #: Each row keeps its largest weight.
    ALL_DROPPED = ad.DropAttention(1.0)
#: No fused path, by design.
REFUSED = {"soft cap", "sinks"}
#: Rounding grows with the length, and with it what is allowed: one situation of several tiles belongs to every grid.
LONGER = Case("longer", 1, 2, 2, 40, 150, 32, 32)
#: The interpreter takes its time, and so does compiling. These have one of each mask.
QUICK = {
    "plain", "cross", "one key", "grouped", "causal", "causal, more queries", "key padding, blind sample", "longer",
    "additive with the lowest value", "causal and key padding as a mask", "bias and causal",
}  # fmt: skip
#: What is decided once for all rows, or divided by a row's sum, differs in few places: these have them all.
FEWEST = {"grouped", "causal, more queries", "key padding, blind sample", "longer"}
#: The specs that `make test` and `make test-gpu` run in all situations that are quick, each with its dtype on a GPU.
#: (Hard masking meets the other dtypes below.)
QUICK_DTYPES = {
    SPECS[0]: torch.bfloat16,
    SPECS[1]: torch.float32,
    SPECS[4]: torch.float16,
    SPECS[5]: torch.bfloat16,
    SPECS[6]: torch.float32,
    SPECS[7]: torch.float16,
    SPECS[8]: torch.bfloat16,
    SPECS[9]: torch.float16,
    SPECS[10]: torch.bfloat16,
    SPECS[11]: torch.float16,
    SPECS[12]: torch.float32,
}


def fewer_heads(case: Case) -> Case:
    """Two heads, or two of keys for four of queries: the interpreter runs one head after the other."""
    return replace(case, heads=2 if case.heads == case.key_heads else 4, key_heads=2)


def situations() -> list[Any]:
    """Spec, dtype, device, and whether only the quick situations are run."""
    found = []
    for spec in SPECS:
        is_slow = [] if spec in QUICK_DTYPES else [pytest.mark.slow]
        # One dtype of them all is enough for the interpreter; the composition has noise and dropout in it.
        is_more = (
            []
            if spec in QUICK_DTYPES and str(spec).startswith(("hard", "drop", "blur(sigma_max=1.0)+noise"))
            else [pytest.mark.slow]
        )
        found.append(pytest.param(spec, torch.float32, "cpu", True, marks=[IN_INTERPRETER, *is_more]))
        if not is_slow:
            found.append(pytest.param(spec, QUICK_DTYPES[spec], "cuda", True, marks=ON_GPU))
        for dtype in dtypes("cuda"):
            found.append(pytest.param(spec, dtype, "cuda", False, marks=[*ON_GPU, pytest.mark.slow]))
    return found


@pytest.mark.parametrize("spec, dtype, device, quick", situations(), ids=str, indirect=["device"])
def test_situations(spec: Spec, dtype: torch.dtype, device: str, quick: bool) -> None:
    blurs = any(isinstance(leaf, ad.BlurSmoothing) for leaf in spec.leaves())
    worst = Worst()
    for case in [*CASES, LONGER]:
        refused = case.name in REFUSED or (blurs and ("causal" in case.name or "lowest" in case.name))
        refused = refused or (blurs and "arbitrary" in case.name)
        if refused or (device == "cpu" and case.name not in (FEWEST if spec in SPECS[9:] else QUICK)):
            continue
        # What is allowed comes from all situations, also where the kernels are compiled for the quick ones alone.
        add = worst.add if case.name in QUICK or not quick else worst.add_known
        add(
            spec,
            fewer_heads(case) if device == "cpu" else case,
            dtype,
            device,
            dropout_p=0.2 if case.name == "cross" else 0.0,
        )
    worst.check()


@pytest.mark.parametrize("spec", [SPECS[0], slow(SPECS[1])], ids=str)
def test_few_keys_over_many_draws(spec: Spec, device: str) -> None:
    """With few keys one of them often has nearly all the weight, and its gradient is what cancellation leaves."""
    known: dict[str, list[float]] = {}
    fused: dict[str, list[float]] = {}
    for case in CASES:
        if case.name in ("one query", "causal, shorter than a kernel"):
            for seed in range(3 if device == "cpu" else 60):
                for backend, found in (("eager", known), ("fused", fused)):
                    for name, error in errors(spec, case, torch.float32, backend, device, seed=seed).items():
                        found.setdefault(name, []).append(error)
    for name in known:
        # Not the worst: a draw that leaves hardly a gradient leaves an error of any size, in either of the two.
        eager, ours = (torch.tensor(found[name]).quantile(0.9).item() for found in (known, fused))
        assert ours <= 2 * max(eager, torch.finfo(torch.float32).eps / 4), (name, ours, eager)


def sizes(device: str) -> list[tuple[int, int]]:
    if device == "cpu":
        return [(1, 1), (2, 70), (65, 65), (3, 130)]
    return [(1, 1), (2, 2), (63, 64), (64, 63), (65, 65), (197, 197), (197, 65), (2, 1000), (1000, 1000)]


@pytest.mark.parametrize("spec", [SPECS[10], slow(SPECS[11])], ids=str)
def test_rows_that_lose_most_of_their_weight(spec: Spec, device: str) -> None:
    """Few keys have nearly all the weight. If they are dropped, others share it that float16 would take for 0."""
    worst = Worst()
    for dtype, seed in product(dtypes(device), range(3 if device == "cpu" else 10)):
        worst.add(spec, Case("peaked", 1, 1, 1, 33, 40, 16, 16, options={"scale": 4.0}, seed=seed), dtype, device)
    worst.check()


@pytest.mark.parametrize(
    "k, fill",
    [
        (3, "zero"),
        (3, "-inf"),
        (32, "zero"),
        (70, "-inf"),
        *(pytest.param(k, fill, marks=pytest.mark.slow) for k, fill in ((32, "-inf"), (70, "zero"))),
        *(pytest.param(k, fill, marks=pytest.mark.slow) for k in (1, 5, 10, 5000) for fill in ("zero", "-inf")),
    ],
)
@pytest.mark.filterwarnings("ignore::attentiondrop.AttentionDropWarning")
def test_sizes(k: int, fill: str, device: str) -> None:
    worst = Worst()
    for rows, columns in sizes(device):
        case = Case(f"{rows}x{columns}", 1, 1 if device == "cpu" else 2, 1, rows, columns, 16, 16)
        for p in (0.0, 0.1, 0.5, 1.0):
            # All rates at one dtype, all dtypes at one rate.
            for dtype in dtypes(device) if p == 0.5 else dtypes(device)[-1:]:
                if device == "cpu" and (p != 0.5 or dtype != torch.float32):
                    continue
                worst.add(ad.HardMasking(p=p, k=k, fill=fill), case, dtype, device)
    worst.check()


@only_on_gpu
@pytest.mark.parametrize(
    "spec, dtype",
    [
        (ad.HardMasking(), torch.bfloat16),
        (ad.HardMasking(p=0.5, k=32), torch.float32),
        (ad.AttentionDropout(), torch.bfloat16),
        pytest.param(ad.HardMasking(), torch.float32, marks=pytest.mark.slow),
        pytest.param(ad.HardMasking(p=0.5, k=32), torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(ad.AttentionDropout(), torch.float32, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_long_rows(spec: Spec, dtype: torch.dtype, device: str) -> None:
    worst = Worst()
    worst.add(spec, Case("4096", 1, 1, 1, 4096, 4096, 64, 64, is_causal=spec == ad.HardMasking()), dtype, device)
    worst.check()


@pytest.mark.parametrize("size", [slow((16, 16)), (24, 40), slow((80, 80)), (128, 64), slow((192, 256))], ids=str)
def test_head_sizes(size: tuple[int, int], device: str) -> None:
    case = Case("head sizes", 1, 2, 1, 33, 40, *size)
    worst = Worst()
    for dtype in dtypes(device):
        for spec in (ad.HardMasking(p=0.4, k=3), ad.AttentionDropout(0.3)):
            worst.add(spec, case, dtype, device)
    worst.check()


@pytest.mark.parametrize("fill", ["zero", "-inf"])
@pytest.mark.parametrize("k", [slow(1), 4, slow(7), 66])
def test_ties_go_to_the_lower_key(k: int, fill: str, device: str) -> None:
    """Few distinct keys, each of them often: every row has ties across its k-th place."""
    generator = torch.Generator().manual_seed(0)
    few = torch.randn(3, 16, generator=generator).to(device)
    k_ = few[torch.randint(0, 3, (150,), generator=generator)].view(1, 1, 150, 16)
    q = torch.randn(1, 1, 20, 16, generator=generator).to(device)
    v = torch.randn(1, 1, 150, 16, generator=generator).to(device)
    grad = torch.randn(1, 1, 20, 16, generator=generator).to(device)
    results = []
    for backend in ("eager", "fused"):
        inputs = [x.clone().requires_grad_() for x in (q, k_, v)]
        torch.manual_seed(1)
        output = attention(*inputs, ad.HardMasking(p=0.5, k=k, fill=fill), backend=backend)
        output.backward(grad)
        results.append([output, *(x.grad for x in inputs)])
    for have, want in zip(*results, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", [slow_on_gpu(x) if x in SPECS[1:4] else x for x in (*SPECS[:7], SPECS[11])], ids=str)
def test_extreme_inputs_give_no_nan(spec: Spec, device: str) -> None:
    """Logits of some ten thousands, rows that see nothing. (Fresh memory holds NaN: see `poison`.)"""
    for dtype in dtypes(device):
        (q, k, v), grad, _ = Case("plain", 1, 2, 2).make(dtype, device)
        q, k = (300 * q).detach().requires_grad_(), (30 * k).detach().requires_grad_()
        mask = torch.rand(1, 2, 9, 9, device=device) < 0.5
        mask[:, :, 3] = False
        output = attention(q, k, v, spec, attn_mask=mask, backend="fused")
        output.backward(grad)
        assert all(x.isfinite().all() for x in (output, q.grad, k.grad, v.grad)), dtype
        assert not output[:, :, 3].any()


def test_negative_scales(device: str) -> None:
    """The largest product is then no largest logit."""
    worst = Worst()
    for spec in (ad.AttentionDropout(0.3), ad.DropKey(0.3)):
        worst.add(spec, Case("negative", 1, 1, 1, 40, 70, 16, 16, options={"scale": -0.5}), torch.float32, device)
    worst.check()


@pytest.mark.filterwarnings("ignore::attentiondrop.AttentionDropWarning")
@pytest.mark.parametrize("second", [ad.AttentionDropout(0.5), ad.DropAttention(0.5)], ids=str)
@pytest.mark.parametrize("p", [0.7, 1.0])
def test_rows_that_keep_one_key(p: float, second: Spec, device: str) -> None:
    """DropKey leaves a row one key. Its weight is 1 whatever its logit, so only its value gets a gradient."""
    spec = ad.Compose([ad.DropKey(p), second])
    results = []
    for backend in ("eager", "fused"):
        g = torch.Generator().manual_seed(0)
        tensors = [torch.randn(2, heads, 40, 16, generator=g).to(device) for heads in (2, 1, 1)]
        q, k, v = (x[:, :, :length].detach().requires_grad_() for x, length in zip(tensors, (40, 3, 3), strict=True))
        torch.manual_seed(2)
        output = attention(q, k, v, spec, enable_gqa=True, backend=backend)
        output.square().sum().backward()
        results.append((output, q.grad, k.grad, v.grad))
    for have, want in zip(*results, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)
    alone = (results[0][1] == 0).all(dim=-1)
    assert alone.any() and (p < 1 or alone.all())
    if isinstance(second, ad.AttentionDropout):  # the other one divides by the weight that is left, with rounding
        assert not results[1][1][alone].any()


@pytest.mark.parametrize("spec", [ad.HardMasking(), ad.DropKey(), ad.AttentionDropout(), ALL_DROPPED], ids=str)
def test_packed_views_and_broadcast_masks(spec: Spec, device: str) -> None:
    """Queries, keys and values as slices of one projection, as timm has them, and masks with stride 0."""
    packed = torch.randn(2, 21, 3, 2, 16, device=device, requires_grad=True)
    mask = (torch.rand(2, 1, 1, 21, device=device) < 0.8).expand(2, 2, 21, 21)
    results = []
    for backend in ("eager", "fused"):
        packed.grad = None
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        torch.manual_seed(3)
        output = attention(q, k, v, spec, attn_mask=mask, backend=backend)
        output.square().sum().backward()
        results.append((output, packed.grad))
    for have, want in zip(*results, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)
    assert output.transpose(1, 2).is_contiguous()


def test_masks_with_places_beyond_32_bits(device: str) -> None:
    """A long mask, or one whose heads come last in memory. (Of this memory, only what is written takes place.)"""
    q, k, v = (torch.randn(1, 2, length, 16, device=device, requires_grad=True) for length in (3, 5, 5))
    step = 2**30 + 512
    visible = torch.tensor([1, 1, 0, 1, 0] * 3, dtype=torch.bool, device=device).view(1, 1, 3, 5)
    bias = torch.randn(1, 1, 3, 5, device=device, dtype=torch.float16)
    far = []
    for mask in (visible, bias):
        memory = torch.empty((2 * step + 8) * mask.element_size(), dtype=torch.uint8, device=device).view(mask.dtype)
        far.append(memory.as_strided(mask.shape, (0, 0, step, 1)).copy_(mask))
    for masks in ((far[0], bias), (visible, far[1])):
        results = []
        for seen, added in ((visible, bias), masks):
            torch.manual_seed(3)
            output = attention(q, k, v, SPECS[0], attn_mask=seen, bias=added, backend="fused")
            results.append((output, *torch.autograd.grad(output.square().sum(), (q, k, v))))
        for have, want in zip(*results, strict=True):
            assert torch.equal(have, want)


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_channels_before_positions(which: tuple[int, ...], device: str) -> None:
    """Inputs [B, H, D, N] that were transposed, as attention after convolutions has them."""
    inputs = [torch.randn(2, 2, 16, 21, device=device, requires_grad=True) for _ in range(3)]
    others = [x.detach().mT.contiguous().requires_grad_() for x in inputs]
    given = [inputs[i].mT if i in which else others[i] for i in range(3)]
    results = []
    for q, k, v in (others, given):
        torch.manual_seed(3)
        output = attention(q, k, v, SPECS[0], backend="fused")
        results.append((output, *torch.autograd.grad(output.square().sum(), (q, k, v))))
    for have, want in zip(*results, strict=True):
        torch.testing.assert_close(have, want)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # opcheck's own
@pytest.mark.parametrize(
    "drop, top", [("zero", 3), ("-inf", 3), ("key", 0), pytest.param("column", 0, marks=pytest.mark.slow), ("", 0)]
)
def test_operator_contract(drop: str, top: int, device: str) -> None:
    q, k, v = (torch.randn(1, 2, 5, 16, device=device, requires_grad=True) for _ in range(3))
    seed = torch.tensor(7, device=device)
    streams = [0 if drop == "" else -1, -1 if drop == "" else 1, 2, -1]
    tensors = (None, None, seed, None, None, None, None)
    rates = [0.1, 0.3, 0.2, 0.0]
    dropout = (True, True, 2) if drop == "column" else (False, False, 1)
    arguments = (q, k, v, *tensors, rates, streams, drop, top, True, 0.25, [], 0, False, *dropout)
    torch.library.opcheck(torch.ops.attentiondrop.fused_attention.default, arguments)
