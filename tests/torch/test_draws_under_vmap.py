"""Seeds that are drawn inside of `torch.func.vmap`: its `randomness` decides whether examples share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

import attentiondrop as ad
from attentiondrop.torch import attention
from attentiondrop.torch.draws import Stream, draw_seed

EXAMPLES = torch.linspace(0.5, 1.0, 5)
LEARNED = torch.ones(3)


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    """An operator without a rule for `vmap` is an error. (By default, torch runs it for one example at a time.)"""
    before = torch._C._functorch._is_vmap_fallback_enabled()
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(before)


def of_example(example: Tensor) -> Tensor:
    return draw_seed(example)


def of_a_parameter(example: Tensor) -> Tensor:
    """Nothing that the operator gets differs between examples, as for a query that is learned."""
    return draw_seed(LEARNED)


def inside_a_gradient(example: Tensor) -> Tensor:
    found: Tensor = grad(lambda x: x * (draw_seed(x) >> 40).to(x.dtype))(example)
    return found


def for_a_rank(example: Tensor) -> Tensor:
    return draw_seed(example, rank=3)


def of_a_generator(example: Tensor) -> Tensor:
    return draw_seed(example, torch.Generator().manual_seed(7))


WAYS = [of_example, of_a_parameter, inside_a_gradient, for_a_rank, of_a_generator]


@pytest.mark.parametrize("way", WAYS)
def test_randomness_decides_which_examples_share_a_seed(way: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    assert len(vmap(way, randomness="different")(EXAMPLES).unique()) == len(EXAMPLES)
    same = vmap(way, randomness="same")(EXAMPLES)
    assert same.shape == EXAMPLES.shape and len(same.unique()) == 1
    with pytest.raises(RuntimeError, match="randomness error mode"):
        vmap(way, randomness="error")(EXAMPLES)


@pytest.mark.parametrize("way", [of_example, of_a_parameter, for_a_rank])
def test_seeds_of_examples_are_those_of_single_calls(way: Callable[[Tensor], Tensor]) -> None:
    """(On a CPU: a GPU draws several numbers at once in another way.)"""
    torch.manual_seed(0)
    single = torch.stack([way(example) for example in EXAMPLES])
    torch.manual_seed(0)
    assert torch.equal(vmap(way, randomness="different", chunk_size=2)(EXAMPLES), single)
    torch.manual_seed(0)
    assert torch.equal(vmap(way, randomness="same")(EXAMPLES), single[:1].expand(len(EXAMPLES)))


def test_a_seed_alone_is_drawn_as_ever() -> None:
    torch.manual_seed(0)
    expected = torch.randint(0, 2**63 - 1, (), dtype=torch.int64)
    for draw in (draw_seed, lambda like: torch.ops.attentiondrop.draw_seed(like, 0)):
        torch.manual_seed(0)
        assert torch.equal(draw(LEARNED), expected)


@pytest.mark.parametrize("way", [of_example, of_a_parameter])
@pytest.mark.parametrize("inner", ["same", "different"])
@pytest.mark.parametrize("outer", ["same", "different"])
def test_one_vmap_inside_another(way: Callable[[Tensor], Tensor], inner: str, outer: str) -> None:
    torch.manual_seed(0)
    seeds = vmap(vmap(way, randomness=inner), randomness=outer)(torch.ones(3, 4))
    assert seeds.shape == (3, 4)
    for randomness, line in ((inner, seeds[0]), (outer, seeds[:, 0])):
        assert len(line.unique()) == (len(line) if randomness == "different" else 1)
    if inner == outer == "different":
        assert len(seeds.unique()) == 12


def test_draws_of_examples_are_independent() -> None:
    """16 uniforms of each of 20,000 examples against those of the next: a correlation of 0 within 4.5 standard errors."""
    torch.manual_seed(0)
    count = 20_000
    draw = vmap(lambda x: Stream(draw_seed(x), 0).uniforms(1, 1, 4, 4).flatten(), randomness="different")
    values = draw(torch.zeros(count)).double() - 0.5
    assert abs(values.mean().item()) < 4.5 * (12 * values.numel()) ** -0.5
    for step in (1, 2):
        correlation = 12 * (values[step:] * values[:-step]).mean()
        assert abs(correlation.item()) < 4.5 * (values.numel() - 16 * step) ** -0.5


@pytest.mark.parametrize("query_is_learned", [False, True])
def test_examples_of_attention_drop_different_keys(query_is_learned: bool) -> None:
    query, key = torch.zeros(1, 1, 8, 4), torch.zeros(6, 1, 1, 8, 4)
    value = torch.eye(8).expand(1, 1, 8, 8)
    spec = ad.parse("dropkey(p=0.4)")

    def run(k: Tensor) -> Tensor:
        return attention(query if query_is_learned else query + k, k, value, spec, backend="eager")

    torch.manual_seed(0)
    weights = vmap(run, randomness="different")(key)
    assert len((weights == 0).flatten(1).unique(dim=0)) == 6
    weights = vmap(run, randomness="same")(key)
    assert (weights == 0).any() and torch.equal(weights, weights[:1].expand_as(weights))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_a_compiler_keeps_one_draw_for_all_examples(randomness: str) -> None:
    nodes: list[str] = []

    def remember(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        nodes.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    run = vmap(of_example, randomness=randomness)
    torch.manual_seed(0)
    expected = run(EXAMPLES)
    torch.manual_seed(0)
    assert torch.equal(torch.compile(run, backend=aot_autograd(fw_compiler=remember))(EXAMPLES), expected)
    assert nodes.count("attentiondrop.draw_seed.default") == 1 and not any("randint" in node for node in nodes)
