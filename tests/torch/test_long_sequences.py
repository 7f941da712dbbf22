"""Long rows on a CUDA device: memory grows with N and not with N^2, windows and blocks included, and models train."""

from __future__ import annotations

import math

import pytest
import torch
from parity import errors
from test_local_masks import BLUR, CASES, SPECS
from test_parity import tolerance

import attentiondrop as ad
from attentiondrop.torch import Blocks, attach, attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HARD = "hard(p=0.1,k=5)"
WINDOW = {"window": (1023, 0), "is_causal": True}


def peak_of(length: int, text: str, **options: object) -> int:
    """Bytes that forward and backward need beyond the inputs, after a first call that compiles the kernels."""
    q, k, v = (torch.randn(1, 8, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    peak = 0
    for _ in range(2):
        q.grad = k.grad = v.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        attention(q, k, v, ad.parse(text), **options).sum().backward()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    return peak


@pytest.mark.parametrize("text", [HARD, BLUR])
@pytest.mark.parametrize("options", [{"is_causal": True}, WINDOW], ids=["causal", "window"])
def test_memory_doubles_with_the_length(text: str, options: dict[str, object]) -> None:
    short, long = (peak_of(length, text, **options) for length in (8192, 16384))
    # A part that does not grow makes it less than double. N^2 would make it four times as much.
    assert long < 2.5 * short, (short, long)


@pytest.mark.parametrize("text", [HARD, BLUR])
def test_block_sparse_attention_builds_no_logits(text: str) -> None:
    """8 heads of 16,384 x 16,384 logits would take 4 GiB in 16 bits."""
    side = 16384 // 128
    places = torch.arange(side, device="cuda")
    visible = ((places[:, None] - places) % 16 == 0) | ((places[:, None] - places).abs() <= 1)
    assert peak_of(16384, text, is_causal=True, blocks=Blocks(visible, 128)) < 2**30


@pytest.mark.parametrize("case", CASES, ids=str)
def test_row_blocks_match_the_oracle(case) -> None:
    """A blur under a window, or blocks, runs in row blocks on every device."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for spec in (text for text in SPECS if "blur" in text):
        for dtype in (torch.float32, torch.float64):
            found = errors(ad.parse(spec), case, dtype, "fused", "cuda")
            assert max(found.values()) <= tolerance(dtype, "eager"), (spec, dtype, found)


@pytest.mark.parametrize("text", ["hard(p=0.5,k=3)", "blur(sigma_max=1.0)", "blur(sigma_max=1.0)+hard(p=0.5,k=3)"])
def test_windows_in_a_captured_graph_draw_anew(text: str) -> None:
    q, k, v = (torch.randn(1, 2, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))

    def step() -> torch.Tensor:
        output = attention(q, k, v, ad.parse(text), window=(100, 0), backend="fused")
        return torch.autograd.grad(output.float().square().sum(), (q, k, v))[1]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradient = step()
    results = []
    for _ in range(2):
        graph.replay()
        results.append(gradient.clone())
    assert all(found.isfinite().all() for found in results) and not torch.equal(*results)


@pytest.mark.parametrize("length", [8192, 32768])
@pytest.mark.parametrize("text", [HARD, "blur(sigma_max=0.5)"])
def test_a_small_decoder_trains(text: str, length: int) -> None:
    transformers = pytest.importorskip("transformers")
    from attentiondrop.experiments.tasks.language.no_cache import WITHOUT_CACHE

    config = transformers.GPT2Config(
        vocab_size=128, n_positions=length, n_embd=128, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).cuda().train()
    attachment = attach(model, text)
    assert len(attachment.sites) == 2
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(128, (1, length), device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    losses = []
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(input_ids=tokens, **WITHOUT_CACHE).logits
            loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), tokens[0, 1:])
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses)) and losses[0] != losses[1]
    # The logits of one head of 32,768 tokens alone would take 2 GiB in 16 bits.
    assert torch.cuda.max_memory_allocated() - before < 2 * 2**30
