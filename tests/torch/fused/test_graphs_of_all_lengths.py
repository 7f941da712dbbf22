"""Compilers trace every path on CUDA for all lengths at once. (Fake tensors say that they are on CUDA.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch import attention
from attentiondrop.torch.fused import why_not_short
from attentiondrop.torch.kernels.short.variants import Device

HARD, BLUR = ad.HardMasking(p=0.1, k=5), ad.BlurSmoothing(0.5)


class Traced(Exception):
    """The compiler has its graph."""


@pytest.fixture(autouse=True)
def h200(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=None: (9, 0))
    monkeypatch.setattr(why_not_short.short_kernels, "why_not_built", lambda: None)
    monkeypatch.setattr(why_not_short.short_kernels, "device_of", lambda index: Device(90, 232448, 233472))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


#: Rows, what is attached, options of the call, and the operator that the graph calls.
CASES = [
    (40, HARD, {}, "short_attention"),
    (40, ad.DropKey(0.1), {"dropout_p": 0.1}, "short_attention"),
    (300, ad.AttentionDropout(0.1), {}, "fused_attention"),
    (300, BLUR, {}, "blurred_attention"),
    (1100, HARD, {}, "hard_masked_attention"),
    (300, ad.DropHead(0.1), {}, "scaled_dot_product_attention"),
]
MORE = [
    (40, ad.HardMasking(p=0.3, k=10, fill="-inf"), {"is_causal": True}, "short_attention"),
    (40, BLUR, {}, "short_attention"),
    (40, ad.Compose([BLUR, HARD]), {}, "short_attention"),
    (40, ad.AttentionDropout(0.1), {"is_causal": True}, "short_attention"),
    (40, ad.DropAttention(0.1, span=2), {}, "short_attention"),
    (300, HARD, {"is_causal": True}, "fused_attention"),
    (300, BLUR, {"is_causal": True}, "causal_blurred_attention"),
    (1100, HARD, {"is_causal": True}, "hard_masked_attention"),
]


@pytest.mark.parametrize(
    ("rows", "spec", "options", "operator"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
    ids=str,
)
def test_one_graph_serves_all_lengths(rows: int, spec: Spec, options: dict[str, Any], operator: str) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return stop

    def stop(*_: Any) -> None:
        raise Traced

    def call(q: Tensor, k: Tensor) -> Tensor:
        return attention(q, k, k, spec, **options)

    with FakeTensorMode(shape_env=ShapeEnv()):
        q, k = (torch.empty(4, 8, rows, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    compiled = torch.compile(call, backend=keep, dynamic=True, fullgraph=True)
    with pytest.raises(Traced):
        compiled(q, k)
    (graph,) = graphs
    (node,) = [node for node in graph.graph.nodes if getattr(node.target, "__name__", "") == operator]
    # A length that had become a number would be an int here.
    assert isinstance(node.args[0].meta["example_value"].shape[2], torch.SymInt)
