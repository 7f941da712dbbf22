"""Statistics of the draws.

Every assertion compares a z score with 5.2, which a correct generator exceeds with probability 2e-7 (two-sided); there
are fewer than 300 of them, so the false-alarm rate of the file is below 6e-5. Seeds are fixed, so a pass stays a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracle_form import sample
from scipy import stats
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import attentiondrop as ad
from attentiondrop import hashing
from attentiondrop.specs import Spec
from attentiondrop.torch import attention, draws
from attentiondrop.torch.call.leaves import LogitShape
from attentiondrop.torch.draws import Stream, draw_seed

LIMIT = 5.2
SHAPE = LogitShape(4, 8, 128, 96)
CPU = torch.zeros(1)


def z_of_mean(x: Tensor, mean: float, variance: float) -> float:
    return (x.double().mean().item() - mean) / math.sqrt(variance / x.numel())


def z_of_correlation(a: Tensor, b: Tensor) -> float:
    """z of the covariance of two fields of uniforms, which have mean 1/2 and variance 1/12."""
    return z_of_mean((a.double() - 0.5) * (b.double() - 0.5), 0.0, 1 / 144)


@pytest.fixture(scope="module")
def field() -> Tensor:
    torch.manual_seed(0)
    return Stream(draw_seed(CPU), 0).uniforms(*SHAPE)


def test_uniforms_are_uniform(field: Tensor) -> None:
    assert field.min() >= 0.0 and field.max() < 1.0
    assert abs(z_of_mean(field, 0.5, 1 / 12)) < LIMIT
    counts = torch.histc(field, bins=256, min=0.0, max=1.0).double().numpy()
    assert stats.chisquare(counts).pvalue > 2e-7
    # The low bits too: they decide rates such as 1e-5.
    counts = np.bincount((field.flatten() * 2**24).long().numpy() % 256, minlength=256)
    assert stats.chisquare(counts).pvalue > 2e-7


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_rate_of_decisions(field: Tensor, p: float) -> None:
    assert abs(z_of_mean((field < p).float(), p, p * (1 - p))) < LIMIT


def test_neighbours_are_independent(field: Tensor) -> None:
    for dim in range(4):
        for step in (1, 2):
            length = field.shape[dim]
            near = field.narrow(dim, 0, length - step), field.narrow(dim, step, length - step)
            assert abs(z_of_correlation(*near)) < LIMIT, (dim, step)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_rows_and_columns_drop_independently_of_each_other(field: Tensor, p: float) -> None:
    """The hash joins a row word and a column word, so look at all pairs of rows, and of columns, of a head."""
    dropped = (field < p).double()
    for x in (dropped, dropped.transpose(-1, -2)):
        n, length = x.shape[-2:]
        together = (x @ x.transpose(-1, -2)).flatten(0, 1)
        pairs = torch.triu(torch.ones(n, n), 1).bool()
        counts = together[:, pairs]
        expected, variance = length * p * p, length * p * p * (1 - p * p)
        assert abs(counts.mean().item() - expected) < LIMIT * math.sqrt(variance / counts.numel()) * math.sqrt(n)
        # Dependent rows would overlap too much or too little: the spread of the counts tells.
        assert abs(counts.var().item() / variance - 1) < 0.05


def test_rectangles_are_independent(field: Tensor) -> None:
    """(i, j), (i, j'), (i', j), (i', j') share two row words and two column words: their product has mean 0."""
    x = field.double() - 0.5
    product = x[..., 1:, 1:] * x[..., :-1, 1:] * x[..., 1:, :-1] * x[..., :-1, :-1]
    assert abs(z_of_mean(product, 0.0, 12.0**-4)) < LIMIT


def test_calls_and_streams_are_independent(field: Tensor) -> None:
    torch.manual_seed(0)
    first, second = draw_seed(CPU), draw_seed(CPU)
    assert abs(z_of_correlation(field, Stream(second, 0).uniforms(*SHAPE))) < LIMIT
    assert abs(z_of_correlation(field, Stream(first, 1).uniforms(*SHAPE))) < LIMIT
    assert abs(z_of_correlation(Stream(first, 1).uniforms(*SHAPE), Stream(second, 1).uniforms(*SHAPE))) < LIMIT


def test_a_graph_counts_its_calls_from_one() -> None:
    """Whenever it is traced: another count would be another graph, which torch has not compiled yet."""
    found = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append([node.args[1] for node in graph.graph.nodes if "draw_seed" in str(node.target)])
        return graph.forward

    for _ in range(2):
        torch.compiler.reset()
        torch.compile(lambda: (draw_seed(CPU), draw_seed(CPU)), backend=backend)()
    assert found == [[1, 2], [1, 2]]


def test_seeds_that_differ_in_one_bit_are_independent() -> None:
    shape = (1, 2, 64, 64)
    base = Stream(torch.tensor(0), 0).uniforms(*shape)
    for bit in range(63):
        assert abs(z_of_correlation(base, Stream(torch.tensor(1 << bit), 0).uniforms(*shape))) < LIMIT, bit


def by_tensors(seed: Tensor, number: int) -> Stream:
    """A stream that computes as on a GPU or in compiled code."""
    stream = Stream(seed, number)
    stream._hash = draws._OnTensors(seed, number)
    return stream


@pytest.mark.parametrize("make", [Stream, by_tensors])
def test_both_forms_are_the_hash(make: Callable[[Tensor, int], Stream]) -> None:
    """`attentiondrop.hashing` has the definition."""
    batch, heads, rows, columns = 2, 3, 11, 17
    for seed in (0, 3, 0x7EDCBA9876543210, 2**63 - 1):
        for number in (0, 1, 2**20):
            key, stream = hashing.stream_key(seed, number), make(torch.tensor(seed), number)
            expected = hashing.line_and_column_words(key, batch * heads * rows, columns).view(np.int32)
            words = stream.words(batch, heads, rows, columns)
            assert words.line.shape == (batch, heads, rows, 1) and words.column.shape == (columns,)
            assert np.array_equal(torch.cat([words.line.flatten(), words.column]).numpy(), expected)
            top = (hashing.vector_words(key, 9) >> 8).astype(np.float32)
            assert np.array_equal(stream.uniform_vector(9).numpy(), top / 2**24)
            joined = np.multiply.outer(expected[: batch * heads * rows], expected[-columns:]).view(np.uint32) >> 8
            have = stream.uniforms(batch, heads, rows, columns).numpy()
            assert np.array_equal(have.reshape(joined.shape), joined.astype(np.float32) / 2**24)


@pytest.mark.parametrize("make", [Stream, by_tensors])
def test_a_limit_decides_what_the_uniforms_decide(make: Callable[[Tensor, int], Stream]) -> None:
    stream = make(torch.tensor(77), 3)
    for shape in ((2, 2, 16, 16), (1, 2, 300, 100)):  # by NumPy, and by torch because there are many
        uniforms = stream.uniforms(*shape)
        rates = [0.0, 1e-9, 2.0**-24, 0.1, 1 / 3, 0.5, 1.0, *uniforms.flatten()[:20].tolist()]
        for rate in rates:
            expected = uniforms < rate
            assert torch.equal(stream.below(shape, rate), expected)
            assert torch.equal(stream.words(*shape).below(rate), expected)
            assert torch.equal(stream.below(shape, torch.tensor(rate)), expected)


def test_the_limit_itself_is_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that differ by 1, of which the first gives the largest uniform below the rate. They are hit too rarely."""
    for rate in (2.0**-24, 0.1, 0.5, 1 - 2.0**-24):
        limit = hashing.limit_of(rate)
        words = np.array([limit, limit + 2, 1], dtype=np.uint32)
        found = draws.Words(
            torch.from_numpy(words[:2].view(np.int32)).view(1, 1, 2, 1), torch.ones(1, dtype=torch.int32)
        )
        assert (found.uniforms() < rate).flatten().tolist() == [True, False]
        assert found.below(rate).flatten().tolist() == [True, False]
        monkeypatch.setattr(hashing, "line_and_column_words", lambda *_, words=words: words)
        assert Stream(torch.tensor(1), 0).below((1, 1, 2, 1), rate).flatten().tolist() == [True, False]


class Watching(TorchDispatchMode):
    """A mode that sees operations, as that of selective checkpointing does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.overloadpacket._qualified_op_name)
        return func(*args, **(kwargs or {}))


SMALL = ["hard(p=0.4,k=3)", "hard(p=0.9,k=3,fill=-inf)", "blur(sigma_max=1.0)", "dropkey(p=0.8)", "attndropout(p=0.3)"]


@pytest.mark.filterwarnings("ignore::attentiondrop.AttentionDropWarning")
@pytest.mark.parametrize("text", [*SMALL, "oneof(dropkey,noise)", "drophead(p=0.4)", "dropattention(p=0.4,span=2)"])
def test_who_watches_or_transforms_a_call_sees_operations_and_the_same_draws(text: str) -> None:
    spec = ad.parse(text)
    q, k, v = torch.randn(3, 2, 2, 9, 8)

    def run(query: Tensor) -> Tensor:
        torch.manual_seed(4)
        return attention(query, k, v, spec, backend="eager")

    expected = run(q)
    with Watching() as mode:
        assert torch.equal(run(q), expected)
    assert {"attentiondrop::draw_seed", "aten::bitwise_xor", "aten::mul"} <= mode.seen
    mapped = torch.func.vmap(run, randomness="same")(torch.stack([q, 2 * q]))
    for example, scale in zip(mapped, (1, 2), strict=True):
        torch.testing.assert_close(example, run(scale * q), rtol=1e-6, atol=1e-6)
    fake = FakeTensorMode()
    with fake:
        assert attention(*(fake.from_tensor(x) for x in (q, k, v)), spec, backend="eager").shape == expected.shape
    traced = make_fx(run)(q)
    # The trace has drawn what it was traced with, but has kept the draws as operations: each run is a new draw.
    assert any("draw_seed" in str(node.target) for node in traced.graph.nodes)
    torch.manual_seed(4)
    assert torch.equal(traced(q), expected)
    torch.manual_seed(5)
    assert not torch.equal(traced(q), expected)


def test_no_two_of_400_000_calls_share_their_first_rows() -> None:
    """Two rows have two words of 31 bits: random ones would coincide in any two of the calls once in 6 * 10^7 runs."""
    torch.manual_seed(0)
    seeds = torch.randint(0, 2**63 - 1, (400_000,))

    def first_rows(seed: Tensor) -> Tensor:
        stream = Stream(seed, 0)
        words = stream.words(1, 1, 2, 2)
        return torch.cat([words.line.flatten(), words.column, stream.uniform_vector(2).view(torch.int32)])

    words = torch.func.vmap(first_rows)(seeds)
    for pair in (words[:, :2], words[:, 2:4]):
        assert len(np.unique(pair.contiguous().numpy().view(np.int64))) == len(seeds)
    # Of a vector, a draw has 24 bits: 48 together, which leaves one collision in 3,500 runs for random ones.
    assert len(np.unique(words[:, 4:].contiguous().numpy().view(np.int64))) == len(seeds)


def test_normals_are_normal() -> None:
    torch.manual_seed(0)
    x = Stream(draw_seed(CPU), 0).normals(*SHAPE).double()
    assert abs(z_of_mean(x, 0.0, 1.0)) < LIMIT
    assert abs(z_of_mean(x.square(), 1.0, 2.0)) < LIMIT
    assert abs(z_of_mean(x**3, 0.0, 15.0)) < LIMIT
    assert abs(z_of_mean(x**4, 3.0, 96.0)) < LIMIT
    assert abs(z_of_mean(x[..., 1:] * x[..., :-1], 0.0, 1.0)) < LIMIT
    assert stats.kstest(x.flatten()[:20000].numpy(), "norm").pvalue > 2e-7


@pytest.mark.no_cover
@pytest.mark.parametrize("sampling", ["batch", "sample", "head"])
def test_sigma_is_uniform(sampling: str) -> None:
    spec = ad.BlurSmoothing(sigma_max=0.5, sigma_min=0.1, sampling=sampling)
    torch.manual_seed(0)
    drawn = torch.cat([sample(spec, draw_seed(CPU), SHAPE).view(-1) for _ in range(4000)])
    assert drawn.numel() == 4000 * {"batch": 1, "sample": 4, "head": 8}[sampling]
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > 2e-7
    assert abs(z_of_correlation(drawn[1:], drawn[:-1])) < LIMIT


@pytest.mark.no_cover
def test_one_of_chooses_with_its_weights() -> None:
    spec = ad.OneOf([ad.GaussianNoise(), ad.DropKey(), ad.DropHead()], weights=[0.2, 0.3, 0.5])
    torch.manual_seed(0)
    choices = torch.stack([sample(spec, draw_seed(CPU), LogitShape(1, 1, 1, 1))[0] for _ in range(5000)])
    counts = [
        (choices < 0.2).sum().item(),
        ((choices >= 0.2) & (choices < 0.5)).sum().item(),
        (choices >= 0.5).sum().item(),
    ]
    assert stats.chisquare(counts, [1000, 1500, 2500]).pvalue > 2e-7


def identity_attention(spec: Spec, rows: int = 64, columns: int = 32, heads: int = 8) -> Tensor:
    """The weights themselves: values are the unit vectors, logits are random."""
    q, k = torch.randn(4, heads, rows, 16), torch.randn(4, heads, columns, 16)
    return attention(q, k, torch.eye(columns).expand(4, heads, columns, columns), spec)


def test_drop_rates_as_a_user_sees_them() -> None:
    """Rates realised in the weights of whole calls, not in the draws."""
    p = 0.3
    weights = identity_attention(ad.HardMasking(p=p, k=5, fill="-inf"))
    dropped = (weights == 0).sum(-1).double()
    assert abs(z_of_mean(dropped, 5 * p, 5 * p * (1 - p))) < LIMIT
    weights = identity_attention(ad.DropKey(p=p))
    assert abs(z_of_mean((weights == 0).double(), p, p * (1 - p))) < LIMIT
    weights = identity_attention(ad.AttentionDropout(p=p))
    assert abs(z_of_mean((weights == 0).double(), p, p * (1 - p))) < LIMIT
    heads = torch.cat([(identity_attention(ad.DropHead(p=p), rows=2).sum((-1, -2)) == 0) for _ in range(200)])
    # Conditioned on at least one head kept: with 8 heads that changes the rate by p^8 / 8.
    assert abs(z_of_mean(heads.double(), p - p**8 / 8, p * (1 - p))) < LIMIT


def test_drop_head_keeps_the_scale_and_at_least_one_head() -> None:
    with pytest.warns(ad.AttentionDropWarning):
        spec = ad.DropHead(p=0.95)
    sums = identity_attention(spec, rows=1).sum((-1, -2))
    kept = (sums > 0).sum(-1)
    assert (kept >= 1).all()
    torch.testing.assert_close(sums.sum(-1), torch.full((4,), 8.0))


@pytest.mark.parametrize("by", ["element", "column"])
@pytest.mark.parametrize("span", [1, 3])
def test_drop_attention_drops_blocks_and_keeps_the_sum(by: str, span: int) -> None:
    p = 0.3
    weights = identity_attention(ad.DropAttention(p, by, span), columns=33)
    dropped = (weights == 0).double()
    if by == "column":
        assert bool((dropped == dropped[:, :, :1]).all())
        dropped = dropped[:, :, :1]
    blocks = dropped.unflatten(-1, (-1, span))
    assert bool((blocks == blocks[..., :1]).all())
    # A row that loses all keeps one key: with 11 blocks or more this changes the rate by less than 1e-6.
    assert abs(z_of_mean(blocks[..., 0], p, p * (1 - p))) < LIMIT
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_masked_heads_are_every_pair_equally_often() -> None:
    torch.manual_seed(0)
    q = torch.ones(2000, 4, 1, 2)
    kept = attention(q, q, q, ad.HeadMask(2))[..., 0, 0]
    assert bool(((kept == 0).sum(-1) == 2).all())
    torch.testing.assert_close(kept[kept != 0], torch.ones(4000))  # no rescaling
    pairs = ((kept == 0) * torch.tensor([1, 2, 4, 8])).sum(-1)
    counts = torch.bincount(pairs, minlength=16)[[3, 5, 6, 9, 10, 12]].numpy()
    assert counts.sum() == 2000 and stats.chisquare(counts).pvalue > 2e-7


@pytest.mark.parametrize("spec", [ad.AttentionDropout(0.3), ad.DropHead(0.3)], ids=str)
def test_unbiased_where_it_is_claimed(spec: Spec) -> None:
    """The mean over samples, which have their own draws, is the output without a spec: one z for each number of it."""
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 1, 3, 2, 4)
    k, v = (torch.cat([x, x + 0.5], dim=-2) for x in (k, v))
    found = attention(*(x.expand(20_000, -1, -1, -1) for x in (q, k, v)), spec).double()
    z = (found.mean(0) - attention(q, k, v)[0]) / (found.std(0) / math.sqrt(len(found)))
    assert z.numel() == 24 and bool((z.abs() < LIMIT).all())


def test_each_call_draws_anew_and_a_seed_repeats_it() -> None:
    q, k, v = torch.randn(3, 1, 2, 12, 8)
    for spec in (
        ad.HardMasking(p=0.5),
        ad.BlurSmoothing(1.0),
        ad.GaussianNoise(),
        ad.DropKey(0.3),
        ad.AttentionDropout(0.3),
        ad.DropAttention(0.3),
    ):
        torch.manual_seed(3)
        first, second = attention(q, k, v, spec), attention(q, k, v, spec)
        assert not torch.equal(first, second)
        torch.manual_seed(3)
        assert torch.equal(attention(q, k, v, spec), first)
        generator = torch.Generator().manual_seed(11)
        given = attention(q, k, v, spec, generator=generator)
        assert not torch.equal(attention(q, k, v, spec, generator=generator), given)
        assert torch.equal(attention(q, k, v, spec, generator=generator.manual_seed(11)), given)


def test_backends_draw_alike() -> None:
    q, k, v = torch.randn(3, 2, 4, 12, 8, dtype=torch.float64)
    for sampling in ("batch", "sample", "head"):
        for causal in (False, True):
            outputs = []
            for backend in ("eager", "fused"):
                torch.manual_seed(3)
                spec = ad.Compose([ad.BlurSmoothing(1.0, sampling=sampling), ad.DropHead(0.4)])
                outputs.append(attention(q, k, v, spec, is_causal=causal, backend=backend))
            torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
