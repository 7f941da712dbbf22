"""What only a CUDA device can show: parity there, CUDA graphs, compiled kernels, memory. Run with `make test-gpu`."""

from __future__ import annotations

import pytest
import torch
from parity import CASES, errors
from test_parity import FUSED, SPECS, has_fused_path, tolerance

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch import attach, attention
from attentiondrop.torch.call.inputs import Options
from attentiondrop.torch.call.leaves import Driven
from attentiondrop.torch.draws import Stream
from attentiondrop.torch.functional import perturbed_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


CLOSE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
    torch.float32: {"rtol": 1e-3, "atol": 1e-6},
    # A compiled model rounds its activations in other places than an eager one.
    torch.bfloat16: {"rtol": 0.1, "atol": 2e-3},
}


@pytest.fixture(autouse=True)
def no_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_eager_matches_the_oracle(spec: Spec) -> None:
    for case in CASES:
        for dtype in DTYPES:
            found = errors(spec, case, dtype, "eager", "cuda")
            assert max(found.values()) <= tolerance(dtype, "eager"), (str(case), dtype, found)


def is_repetition(spec: Spec) -> bool:
    """Rates at their ends and wider kernels: compiled anew, and computed as the others are."""
    return str(spec) in map(str, (ad.BlurSmoothing(0.0), ad.BlurSmoothing(1.5, width=15, edges="renormalize")))


@pytest.mark.parametrize(
    "spec", [pytest.param(x, marks=pytest.mark.slow) if is_repetition(x) else x for x in FUSED], ids=str
)
def test_fused_matches_the_oracle(spec: Spec) -> None:
    blurs = [leaf for leaf in spec.leaves() if isinstance(leaf, ad.BlurSmoothing) and leaf.width > 1]
    for case in CASES:
        if not has_fused_path(spec, case):
            continue
        for dtype in DTYPES:
            if dtype == torch.float64 and blurs and "causal" in case.name:
                with pytest.raises(ad.BackendError, match=r"no fused attention with a log-sum-exp for torch\.float64"):
                    errors(spec, case, dtype, "fused", "cuda")
                continue
            found = errors(spec, case, dtype, "fused", "cuda")
            # With one key the truth is 0, and SDPA's kernel leaves 2.1e-6 of terms of size 1 (on an H200, torch 2.11); a
            # head that is left alone is scaled by their number, and so is that.
            bound = 2 * tolerance(dtype, "fused") if dtype == torch.float32 else tolerance(dtype, "fused")
            if case.name == "one key" and any(isinstance(leaf, ad.DropHead) for leaf in spec.leaves()):
                bound *= case.heads
            assert max(found.values()) <= bound, (str(case), dtype, found)


def test_the_hash_is_the_same_on_every_device() -> None:
    seed = torch.tensor(123456789012345)
    for number in range(3):
        cpu, gpu = Stream(seed, number), Stream(seed.cuda(), number)
        assert torch.equal(cpu.uniforms(2, 3, 50, 70), gpu.uniforms(2, 3, 50, 70).cpu())
        assert torch.equal(cpu.uniform_vector(1000), gpu.uniform_vector(1000).cpu())
        torch.testing.assert_close(cpu.normals(2, 3, 50, 70), gpu.normals(2, 3, 50, 70).cpu(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("text", ["hard(p=0.3,k=3)", "blur(sigma_max=1.0)", "oneof(dropkey,noise)"])
def test_cuda_graphs_draw_anew_in_every_replay(text: str) -> None:
    spec = ad.parse(text)
    q, k, v = torch.randn(3, 2, 4, 33, 16, device="cuda", dtype=torch.bfloat16)
    attention(q, k, v, spec, is_causal=True)  # kernels are compiled before a capture, not in it
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = attention(q, k, v, spec, is_causal=True)
    results = []
    for _ in range(3):
        graph.replay()
        results.append(output.clone())
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])


@pytest.mark.parametrize("text", ["hard(p=0.3,k=3)", "blur(sigma_max=1.0)"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_repeated_calls_under_autocast(text: str, dtype: torch.dtype) -> None:
    """A call like an earlier one skips the checks; it computes the same, whether autocast has to cast or not."""
    spec = ad.parse(text)
    given = torch.randn(3, 2, 4, 33, 16, device="cuda", dtype=dtype)
    grad = torch.randn(2, 4, 33, 16, device="cuda", dtype=torch.bfloat16)

    def run(tensors: torch.Tensor, enabled: bool) -> list[torch.Tensor]:
        q, k, v = (x.detach().requires_grad_() for x in tensors)
        torch.manual_seed(5)
        with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
            output = attention(q, k, v, spec)
        return [output, *torch.autograd.grad(output, (q, k, v), grad)]

    results = [run(given, True), run(given, True), run(given.bfloat16(), False), run(given.bfloat16(), False)]
    for found in results[1:]:
        assert all(torch.equal(a.bfloat16(), b.bfloat16()) for a, b in zip(results[0], found, strict=True))


@pytest.mark.parametrize(
    "sampling, sigma_min, rows, causal",
    [
        ("batch", 0.0, 33, False),
        ("batch", 0.0, 300, True),
        ("head", 0.0, 33, True),
        ("head", 0.0, 300, False),
        ("batch", 0.2, 33, False),
        ("batch", 0.2, 300, True),
    ],
)
def test_a_captured_blur_follows_its_rate(sampling: str, sigma_min: float, rows: int, causal: bool) -> None:
    """A rate that is a tensor gives the draws of its number, in kernels for short rows and in the others."""
    q, k, v = torch.randn(3, 2, 4, rows, 32, device="cuda", dtype=torch.bfloat16)
    rate = torch.tensor(1.0, device="cuda")
    spec, options = ad.BlurSmoothing(1.0, sigma_min=sigma_min, sampling=sampling), Options(is_causal=causal)
    driven = Driven(spec, {0: {"sigma_max": rate}})

    def run(drop: Spec | Driven, seed: int) -> torch.Tensor:
        torch.cuda.manual_seed(seed)
        return perturbed_attention(q, k, v, drop, options, backend="fused").output

    run(driven, 0)  # kernels are compiled before a capture, not in it
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = perturbed_attention(q, k, v, driven, options, backend="fused").output
    results = []
    for seed, value in enumerate((0.3, 1.0, 1.0, 1.0, 1.0, 1.0)):
        rate.fill_(value)
        torch.cuda.manual_seed(seed)
        graph.replay()
        results.append(output.clone())
        assert torch.equal(results[-1], run(driven, seed))
        if sigma_min == 0.0:  # (From numbers, kernels may round `sigma_min + span * uniform` once.)
            assert torch.equal(results[-1], run(ad.BlurSmoothing(value, sampling=sampling), seed))
    # Two small sigmas may both blur less than bfloat16 can show; not all of these are small.
    assert any(not torch.equal(results[1], other) for other in results[2:])


#: One decision for all rows of a head, before and after the softmax.
COLUMNS = "dropkey(p=0.3,by=column)+dropattention(p=0.3,by=column)"
#: float64 runs eager: rounding cannot hide or fake a difference there. The others run the kernels.
COMPILED = [
    ("hard(p=0.3,k=3)", torch.float64, "default"),
    ("hard(p=0.3,k=3)", torch.float32, "reduce-overhead"),
    ("dropkey(p=0.3)+attndropout(p=0.1)", torch.float32, "default"),
    ("blur(sigma_max=1.0)", torch.bfloat16, "reduce-overhead"),
    (COLUMNS, torch.float32, "reduce-overhead"),
]
COMPILED_SLOW = [
    ("hard(p=0.3,k=3)", torch.float64, "reduce-overhead"),
    ("hard(p=0.3,k=3)", torch.float32, "default"),
    ("dropkey(p=0.3)+attndropout(p=0.1)", torch.float32, "reduce-overhead"),
    ("blur(sigma_max=1.0)", torch.bfloat16, "default"),
    ("blur(sigma_max=1.0)", torch.float64, "default"),
    ("blur(sigma_max=1.0)", torch.float64, "reduce-overhead"),
]


@pytest.mark.parametrize(
    "text, dtype, mode", [*COMPILED, *(pytest.param(*x, marks=pytest.mark.slow) for x in COMPILED_SLOW)], ids=str
)
def test_compiled_model_equals_eager(text: str, dtype: torch.dtype, mode: str) -> None:
    torch._dynamo.reset()
    options = {"device": "cuda", "dtype": dtype}
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True, **options)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(4, 33, 64, **options)
    attach(model, text)
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    grads = []
    for function in (model, compiled):
        for _ in range(3):  # warm-up, recording, replay
            model.zero_grad()
            torch.manual_seed(1)
            function(x).square().mean().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for have, want in zip(*grads, strict=True):
        torch.testing.assert_close(have, want, **CLOSE[dtype])
    first, second = compiled(x).clone(), compiled(x).clone()
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "text, causal",
    [
        *((text, False) for text in ("blur(sigma_max=1.0)", "hard", "noise", "dropkey", "attndropout", COLUMNS)),
        *((text, True) for text in ("blur(sigma_max=1.0)", "hard")),
        *(pytest.param(text, True, marks=pytest.mark.slow) for text in ("noise", "dropkey", "attndropout")),
    ],
)
def test_memory_is_linear(text: str, causal: bool) -> None:
    """Peak extra memory of forward and backward grows with N, not with N^2."""
    peaks = []
    for n in (2048, 8192):
        q, k, v = (torch.randn(1, 4, n, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        attention(q, k, v, ad.parse(text), is_causal=causal, backend="fused").sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 5 * peaks[0], peaks
