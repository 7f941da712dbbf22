"""Hard masking on top of torch's own attention, which on a CPU, for the interpreter, is its flash attention there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cpu_library
import pytest
import torch
import torch.utils.checkpoint
from devices import CPU, CUDA, only_on_gpu, slow
from parity import Case
from torch import Tensor
from worst import Worst, dtypes

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch import attention
from attentiondrop.torch.call.inputs import Options, normalise
from attentiondrop.torch.call.leaves import Bounds, Driven, active_leaves
from attentiondrop.torch.call.one_call import make_call
from attentiondrop.torch.dispatch import choose
from attentiondrop.torch.functional import perturbed_attention
from attentiondrop.torch.fused import amended_hard
from attentiondrop.torch.kernels import library_attention

CASES = [
    Case("plain", 1, 1, 1, 70, 150, 32, 32),
    Case("causal", 1, 1, 1, 110, 110, 16, 16, is_causal=True),
    Case("grouped", 1, 4, 2, 33, 70, 16, 16),
    Case("causal grouped", 1, 2, 1, 70, 70, 16, 16, is_causal=True),
    # Few keys hold most of the weight: many rows lose too much of it to be amended.
    Case("peaked", 1, 1, 1, 70, 90, 40, 40, options={"scale": 1.0}),
    Case("causal peaked", 1, 1, 1, 90, 90, 16, 16, is_causal=True, options={"scale": 1.5}),
]
SPECS = [
    ad.HardMasking(p=0.3, k=5),
    ad.HardMasking(p=0.4, k=3, fill="-inf"),
    slow(ad.HardMasking(p=0.5, k=1)),
    slow(ad.HardMasking(p=0.5, k=8, fill="-inf")),
]


@pytest.fixture(autouse=True)
def calls(device: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of torch's kernels were asked for."""
    found: list[str] = []
    original = cpu_library.forward if device == "cpu" else library_attention.forward

    def forward(kind: str, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        found.append(kind)
        return original(kind, *arguments)

    monkeypatch.setattr(library_attention, "forward", forward)
    monkeypatch.setattr(amended_hard, "FEWEST_KEYS", 64)
    monkeypatch.setattr(amended_hard, "HIGHEST_RATE", 1.0)
    if device == "cpu":
        from attentiondrop.torch.kernels.amend import amended_passes as passes
        from attentiondrop.torch.kernels.shared import tiles

        monkeypatch.setattr(library_attention, "choose", lambda *tensors: "cpu")
        monkeypatch.setattr(library_attention, "backward", cpu_library.backward)
        # Fewer programs, which the interpreter runs one after the other.
        monkeypatch.setattr(passes, "amend_tiles", lambda: tiles.Tiles(64, 64, 4, 1))
    return found


def kinds(device: str) -> list[torch.dtype]:
    """On a GPU torch's kernels with a log-sum-exp serve 16 bits."""
    return [dtype for dtype in dtypes(device) if device == "cpu" or dtype != torch.float32]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_situations(spec: Spec, device: str, calls: list[str]) -> None:
    worst = Worst(on_library=True)
    for case in CASES:
        for dtype in kinds(device):
            worst.add(spec, case, dtype, device)
    worst.check()
    assert len(calls) >= len(CASES) * len(kinds(device))


@only_on_gpu
@pytest.mark.parametrize(
    "size, spec, rows, columns",
    [
        (64, SPECS[0], 1000, 1000),
        (64, SPECS[0], 65, 4096),
        (128, SPECS[1], 197, 197),
        *(
            pytest.param(size, spec, rows, columns, marks=pytest.mark.slow)
            for size in (64, 80, 128)
            for spec in SPECS[:2]
            for rows, columns in ((197, 197), (1000, 1000), (65, 4096), (4096, 4096))
            if (size, spec, rows) not in ((64, SPECS[0], 1000), (64, SPECS[0], 65), (128, SPECS[1], 197))
        ),
    ],
    ids=str,
)
def test_sizes(size: int, spec: Spec, rows: int, columns: int, device: str) -> None:
    for scale in (None, 0.5):
        worst = Worst(on_library=True)
        options = {} if scale is None else {"scale": scale}
        case = Case("", 1, 2, 1, rows, columns, size, size, rows == columns == 1000, options=options)
        for dtype in kinds(device):
            worst.add(spec, case, dtype, device)
        worst.check()


def compared(q: Tensor, k: Tensor, v: Tensor, spec: Spec, is_causal: bool) -> list[list[Tensor]]:
    """Outputs and gradients of the eager path in float64, and of the fused one."""
    grad = torch.randn(*q.shape[:-1], v.shape[-1], generator=torch.Generator().manual_seed(3)).to(q)
    results = []
    for backend, dtype in (("eager", torch.float64), ("fused", q.dtype)):
        inputs = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        torch.manual_seed(1)
        output = attention(*inputs, spec, is_causal=is_causal, backend=backend)
        output.backward(grad.to(dtype))
        results.append([output.detach(), *(x.grad for x in inputs)])
    return results


def inputs_of(kind: str) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 90, 16, generator=g) for _ in range(3))
    if kind == "duplicates":
        k[:, :, 45:] = k[:, :, :45]
    elif kind == "integers":
        q, k = q.round(), k.round()
    elif kind == "queries of zeros":
        q[:, :, ::3] = 0
    elif kind == "keys of zeros":
        k[:, :, ::4] = 0
    elif kind == "nearly equal":
        k[:, :, 1::2] = k[:, :, ::2] * (1 + 3e-6)
    elif kind == "one key for all":
        k[:, :, 5], q = 3.0, q + 0.8
    return [q, k, v]


@pytest.mark.parametrize("spec", [SPECS[0], slow(ad.HardMasking(p=0.5, k=2, fill="-inf"))], ids=str)
@pytest.mark.parametrize("is_causal", [False, slow(True)])
@pytest.mark.parametrize(
    "kind",
    ["duplicates", "integers", "queries of zeros", "keys of zeros", "nearly equal", "one key for all"],
)
def test_ties_and_rivals(kind: str, is_causal: bool, spec: Spec, device: str, calls: list[str]) -> None:
    """One wrong decision moves some row of the output by far more than rounding."""
    dtype = torch.float32 if device == "cpu" else torch.float16
    q, k, v = (x.to(device, dtype) for x in inputs_of(kind))
    for want, have in zip(*compared(q, k, v, spec, is_causal), strict=True):
        torch.testing.assert_close(
            have.double(), want, rtol=0, atol=64 * torch.finfo(dtype).eps * want.abs().max().item()
        )
    assert calls


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # in columns past the end, never stored
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("fill", ["zero", slow("-inf")])
def test_extreme_inputs_give_no_nan(fill: str, device: str) -> None:
    for dtype in kinds(device) if device == "cuda" else kinds(device)[-1:]:
        (q, k, v), grad, _ = Case("plain", 1, 2, 2, 70, 70, 16, 16).make(dtype, device)
        for factor in (0.0, 30.0, -30.0):
            queries = (factor * q.abs()).detach().requires_grad_()
            keys = (300 * k.abs()).detach().requires_grad_()  # all logits far above 0, or far below
            output = attention(queries, keys, v, ad.HardMasking(p=0.5, fill=fill), backend="fused")
            output.backward(grad)
            assert all(x.isfinite().all() for x in (output, queries.grad, keys.grad, v.grad)), (dtype, factor)


# The last: more tiles of keys than a byte counts.
@pytest.mark.parametrize("top, columns", [(1, 70), (5, 150), (8, 70), pytest.param(5, 16500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rate, kind", [(1.0, ""), (0.3, ""), (0.3, "twins"), (0.3, "steep")])
def test_picks(top: int, columns: int, rate: float, kind: str, device: str) -> None:
    """The keys that the selection names are those of the largest logits that a draw drops, and so say its bounds."""
    from attentiondrop.torch.call.decisions import Decisions, empty_notes
    from attentiondrop.torch.draws import Stream
    from attentiondrop.torch.kernels.decide import launch
    from attentiondrop.torch.kernels.shared.tiles import pick_tiles

    q, k = (torch.randn(1, 2, n, 16, device=device).half() for n in (20, columns))
    if kind == "twins":
        k[:, :, columns // 2 :] = k[:, :, : columns // 2]
    elif kind == "steep":  # The k largest nearly 0, some of them in one slot; all others far below.
        k = -5 - k.abs() / 4
        k[:, :, [0, 32, 64, 5, 9, 11, 13, 21][:top]] = torch.arange(1, top + 1, device=device)[:, None].half() / 4096
        q = torch.nn.functional.pad(0.5 + torch.rand_like(q[..., :1]), (0, 15))
    seed = torch.tensor(1, device=device)
    call = Decisions(None, None, seed, None, [rate] * 4, [-1, 1, -1, -1], "zero", top, False, 0.25)
    notes = launch.Notes(*empty_notes(q, k, "zero", top))
    lost = torch.empty(1, 2, 20, top, dtype=torch.int32, device=device)
    launch.run_pick(q, k, call, launch.make_tables(q, columns, call), notes, lost, *pick_tiles(q, k))

    logits = q.double() @ k.double().mT
    largest = torch.sort(logits, dim=-1, descending=True, stable=True).indices[..., :top]
    drawn = Stream(seed, 1).uniforms(1, 2, 20, columns) < rate
    expected = torch.where(drawn.gather(-1, largest), largest, -1)
    assert torch.equal(lost.long().sort(-1).values, expected.sort(-1).values)
    assert (lost.diff(dim=-1)[lost[..., :-1] < 0] == 0).all(), "keys first, then -1"

    first = torch.arange(columns, device=device) <= notes.cut.unsqueeze(-1)
    bound = torch.where(first, notes.low.unsqueeze(-1), notes.high.unsqueeze(-1))
    dropped = drawn & (logits * 0.25 * launch.LOG2E >= bound)
    assert torch.equal(dropped, drawn & torch.zeros_like(drawn).scatter(-1, largest, True))


def test_packed_views(device: str, calls: list[str]) -> None:
    packed = torch.randn(2, 70, 3, 2, 16, device=device).to(kinds(device)[0]).requires_grad_()
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
    torch.manual_seed(3)
    output = attention(q, k, v, ad.HardMasking(), backend="fused")
    output.square().sum().backward()
    assert calls and packed.grad is not None and packed.grad.isfinite().all()
    assert output.transpose(1, 2).is_contiguous()


def test_transposed_inputs(device: str, calls: list[str]) -> None:
    """Head sizes that are not the innermost dimension."""
    dtype = kinds(device)[0]
    dense = [torch.randn(1, 2, 16, 70, device=device, dtype=dtype) for _ in range(3)]
    q, k, v = (x.mT for x in dense)
    apart = [x.contiguous() for x in (q, k, v)]
    results = []
    for inputs in ((q, k, v), apart):
        leaves = [x.detach().requires_grad_() for x in inputs]
        torch.manual_seed(0)
        output = attention(*leaves, ad.HardMasking(p=0.5), backend="fused")
        output.square().sum().backward()
        results.append([output, *(x.grad for x in leaves)])
    for have, want in zip(*results, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-2, atol=1e-3)
    assert calls


def test_not_where_results_must_repeat_bit_for_bit(device: str, calls: list[str]) -> None:
    q, k, v = (torch.randn(1, 1, 70, 16, device=device).half() for _ in range(3))
    torch.use_deterministic_algorithms(True)
    try:
        attention(q, k, v, ad.HardMasking(), backend="fused")
    finally:
        torch.use_deterministic_algorithms(False)
    assert not calls


@pytest.mark.parametrize(
    "spec", [ad.HardMasking(k=9), ad.Compose([ad.HardMasking(), ad.AttentionDropout()]), ad.DropKey()], ids=str
)
def test_what_it_does_not_serve_goes_to_the_kernels_of_our_own(spec: Spec, device: str, calls: list[str]) -> None:
    q, k, v = (torch.randn(1, 1, 70, 16, device=device).half() for _ in range(3))
    attention(q, k, v, spec, backend="fused")
    assert not calls


def test_only_where_it_was_found_faster(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(library_attention, "choose", lambda *tensors: "cpu")
    q, k = (torch.empty(1, 1, n, 16, device=device, dtype=torch.float16) for n in (8, 1024))
    seed = torch.zeros((), dtype=torch.int64, device=device)

    def serves(k: Tensor, rate: float) -> bool:
        leaves = active_leaves(ad.HardMasking(rate, 5), seed, torch.float32)
        return choose(make_call(normalise(q, k, k, Options()), leaves, Options(), seed), "fused").path == "amended"

    assert serves(k, 0.1)
    assert not serves(k[:, :, :1023], 0.1)
    assert not serves(k, 0.2)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # opcheck's own
@pytest.mark.parametrize("fill", ["zero", slow("-inf")])
def test_operator_contract(fill: str, device: str) -> None:
    dtype = kinds(device)[0]
    q, k, v = (torch.randn(1, 2, 66, 16, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    kind = library_attention.choose(q, k, v)
    seed = torch.tensor(7, device=device)
    arguments = (q, k, v, seed, None, [0.0, 0.3, 0.0, 0.0], [-1, 1, -1, -1], fill, 3, True, 0.25, kind)
    torch.library.opcheck(torch.ops.attentiondrop.hard_masked_attention.default, arguments)


def step(run: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Output and gradients of one run with the same seed."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    torch.manual_seed(1)
    output = run(*leaves)
    return [output.detach(), *torch.autograd.grad(output.square().sum(), leaves)]


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, ad.HardMasking(p=0.3), is_causal=True, backend="fused")


def test_checkpointing_repeats_the_draws(device: str, calls: list[str]) -> None:
    inputs = [torch.randn(1, 2, 70, 16, device=device).to(kinds(device)[0]) for _ in range(3)]
    again = partial(torch.utils.checkpoint.checkpoint, masked, use_reentrant=False)
    for have, want in zip(step(again, inputs), step(masked, inputs), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-2, atol=1e-2)
    assert len(calls) == 3


@pytest.mark.parametrize(
    "mode, device",
    [
        # Inductor needs a C++ compiler on a CPU; the mode is its own.
        pytest.param("default", *CPU.values, marks=[*CPU.marks, pytest.mark.slow]),
        pytest.param("default", *CUDA.values, marks=[*CUDA.marks, pytest.mark.slow]),
        pytest.param("reduce-overhead", *CUDA.values, marks=CUDA.marks),
    ],
    indirect=["device"],
)
def test_compiled_equals_eager(mode: str, device: str, calls: list[str]) -> None:
    torch._dynamo.reset()
    inputs = [torch.randn(1, 2, 130, 16, device=device).to(kinds(device)[0]) for _ in range(3)]
    options = {"mode": mode} if device == "cuda" else {"backend": "aot_eager"}
    compiled = torch.compile(masked, fullgraph=True, **options)
    for _ in range(3):  # warm-up, recording, replay
        found = [x.clone() for x in step(compiled, inputs)]
    assert calls
    for have, want in zip(found, step(masked, inputs), strict=True):
        torch.testing.assert_close(have, want, rtol=2e-2, atol=2e-2)
    first, second = (compiled(*inputs).clone() for _ in range(2))
    assert not torch.equal(first, second)


@only_on_gpu
def test_cuda_graphs_draw_anew_in_every_replay(device: str, calls: list[str]) -> None:
    q, k, v = torch.randn(3, 1, 2, 130, 64, device=device, dtype=torch.bfloat16)
    masked(q, k, v)  # kernels are compiled before a capture, not in it
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = masked(q, k, v)
    results = []
    for _ in range(3):
        graph.replay()
        results.append(output.clone())
    assert calls and not torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])


@pytest.mark.parametrize("fill", ["zero", slow("-inf")])
def test_a_scheduled_rate(fill: str, device: str, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensor is not read: what it never exceeds allows for this path, or does not."""
    monkeypatch.setattr(amended_hard, "HIGHEST_RATE", 0.5)
    dtype = torch.float32 if device == "cpu" else torch.float16
    q, k, v = (x.to(device, dtype) for x in inputs_of(""))
    spec = ad.HardMasking(p=0.5, k=3, fill=fill)

    def run(q: Tensor, k: Tensor, v: Tensor, bound: float, backend: str) -> list[Tensor]:
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        drop = Driven(spec, {0: {"p": torch.tensor(0.3, device=device)}}, Bounds({0: {"p": bound}}))
        torch.manual_seed(1)
        output = perturbed_attention(*inputs, drop, Options(), backend=backend).output
        output.square().sum().backward()
        return [output.detach(), *(x.grad for x in inputs)]

    want = run(q.double(), k.double(), v.double(), 0.4, "eager")
    for have, right in zip(run(q, k, v, 0.4, "fused"), want, strict=True):
        error = 64 * torch.finfo(dtype).eps * right.abs().max().item()
        torch.testing.assert_close(have.double(), right, rtol=0, atol=error)
    assert len(calls) == 1
    run(q, k, v, 0.6, "fused")
    assert len(calls) == 1  # the kernels of our own
