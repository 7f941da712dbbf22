"""Which path a call takes. Nothing is computed, so that paths of a GPU can be asked for on a CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attentiondrop as ad
from attentiondrop.torch import dispatch
from attentiondrop.torch.call.inputs import Options, normalise
from attentiondrop.torch.call.leaves import active_leaves
from attentiondrop.torch.call.one_call import Call, make_call
from attentiondrop.torch.dispatch import Backend, choose
from attentiondrop.torch.kernels import library_attention, support

KEYS = torch.tensor([True, False]).repeat(1000)


def call_of(text: str, columns: int, device: str = "cpu", **options: Any) -> Call:
    q, k, v = torch.empty(3, 1, 2, columns, 8, device=device)
    seed = torch.zeros((), dtype=torch.int64, device=device)
    given = Options(**options)
    return make_call(normalise(q, k, v, given), active_leaves(ad.parse(text), seed, torch.float32), given, seed)


@pytest.mark.parametrize(
    "text, columns, options, backend, path",
    [
        ("hard", 200, {}, "auto", "decided inside"),
        ("hard", 8, {}, "auto", "eager"),
        ("hard", 8, {}, "fused", "decided inside"),
        ("hard", 200, {}, "eager", "eager"),
        ("hard", 200, {"softcap": 2.0}, "auto", "eager"),
        ("temperature", 200, {}, "auto", "eager"),
        ("dropkey(by=column)", 200, {}, "auto", "decided inside"),
        ("blur+hard", 200, {}, "auto", "decided inside"),
        ("hard+blur", 200, {}, "auto", "eager"),  # in this order, a blur needs the logits
        ("dropattention", 200, {}, "auto", "eager"),
        ("dropattention", 200, {}, "fused", "decided inside"),
        ("dropattention+attndropout", 2000, {}, "auto", "eager"),
        ("drophead", 8, {}, "auto", "sdpa"),
        ("headmask", 8, {}, "auto", "sdpa"),
        # Causal attention of torch gives NaN for such a scale.
        ("drophead", 8, {"is_causal": True}, "auto", "sdpa"),
        ("drophead", 8, {"is_causal": True, "scale": -0.5}, "auto", "eager"),
        ("drophead", 8, {"scale": -0.5}, "auto", "sdpa"),
        ("blur", 8, {"is_causal": True, "scale": 0.0}, "auto", "eager"),
        ("blur", 8, {}, "auto", "sdpa"),
        ("blur", 8, {"attn_mask": KEYS[:8]}, "auto", "sdpa"),
        ("blur", 8, {"attn_mask": KEYS[:8].expand(8, 8).clone()}, "auto", "sdpa"),
        ("blur", 8, {"attn_mask": torch.eye(8, dtype=torch.bool)}, "auto", "eager"),
        ("blur", 8, {"is_causal": True}, "auto", "blurred causal"),
        ("blur", 8, {"attn_mask": torch.ones(8, 8, dtype=torch.bool).tril()}, "auto", "blurred causal"),
        # A window that hides nothing, or only the future, is none.
        ("blur", 8, {"window": (7, 7)}, "auto", "sdpa"),
        ("blur", 8, {"window": (7, 0)}, "auto", "blurred causal"),
        ("blur", 8, {"window": (7, 3), "is_causal": True}, "auto", "blurred causal"),
        ("blur", 8, {"window": (6, 7)}, "auto", "eager"),
        ("blur", 8, {"window": (7, 6)}, "auto", "eager"),
    ],
)
def test_paths_on_a_cpu(text: str, columns: int, options: dict[str, Any], backend: Backend, path: str) -> None:
    route = choose(call_of(text, columns, **options), backend)
    assert (route.path, route.kernel) == (path, "")


@pytest.mark.parametrize(
    "text, columns, options, path",
    [
        ("hard(p=0.1,k=5)", 1024, {}, "amended"),
        ("hard(p=0.1,k=5)", 1024, {"is_causal": True}, "amended"),
        ("blur+hard(p=0.1,k=5)+drophead", 1024, {}, "amended"),
        ("hard(p=0.1,k=5)", 1023, {}, "decided inside"),
        ("hard(p=0.2,k=5)", 1024, {}, "decided inside"),
        ("hard(p=0.1,k=9)", 1024, {}, "decided inside"),
        ("hard(p=0.1,k=5)+attndropout", 1024, {}, "decided inside"),
        ("noise+hard(p=0.1,k=5)", 1024, {}, "decided inside"),
        ("hard(p=0.1,k=5)", 1024, {"dropout_p": 0.1}, "decided inside"),
        ("hard(p=0.1,k=5)", 1024, {"attn_mask": KEYS[:1024]}, "decided inside"),
        ("hard(p=0.1,k=5)", 1024, {"bias": torch.zeros(1024)}, "decided inside"),
        ("hard(p=0.1,k=5)", 1024, {"scale": -1.0}, "decided inside"),
        ("dropkey(p=0.1)", 1024, {}, "decided inside"),
        ("dropkey(p=0.1,by=column)", 1024, {}, "decided inside"),
        ("dropattention(p=0.1,by=column,span=2)", 1024, {}, "decided inside"),
        ("blur", 8, {}, "blurred"),
        ("blur+drophead", 8, {}, "blurred"),
        ("blur+blur", 8, {}, "sdpa"),
        ("blur", 8, {"attn_mask": KEYS[:8]}, "sdpa"),
        ("blur", 8, {"bias": torch.zeros(8)}, "sdpa"),
        ("blur", 8, {"is_causal": True}, "blurred causal"),
    ],
)
def test_paths_where_there_are_kernels(
    text: str, columns: int, options: dict[str, Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "KERNEL_DEVICES", {"cpu"})
    monkeypatch.setattr(support, "_HAS_TRITON", True)
    monkeypatch.setattr(library_attention, "choose", lambda *tensors: "cudnn")
    route = choose(call_of(text, columns, **options), "fused")
    assert (route.path, route.kernel) == (path, "cudnn" if path in ("amended", "blurred") else "")


@pytest.mark.parametrize(
    "text, path",
    [("hard", "short rows"), ("blur", "short rows"), ("blur(width=1)", "short rows"), ("drophead", "sdpa")],
)
def test_paths_where_rows_are_short(text: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those kernels also serve specs that change nothing, and leave whole heads to torch's attention."""
    monkeypatch.setattr(dispatch, "why_not_short", lambda call, plan: None)
    assert choose(call_of(text, 8), "fused").path == path


def test_deterministic_algorithms_are_not_amended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "KERNEL_DEVICES", {"cpu"})
    monkeypatch.setattr(support, "_HAS_TRITON", True)
    monkeypatch.setattr(library_attention, "choose", lambda *tensors: "cudnn")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert choose(call_of("hard(p=0.1,k=5)", 1024), "fused").path == "decided inside"


@pytest.mark.parametrize("is_on, warns, kind", [(False, False, "cudnn"), (True, False, "flash"), (True, True, "cudnn")])
def test_deterministic_algorithms_are_not_those_of_cudnn(
    is_on: bool, warns: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `F.scaled_dot_product_attention`: blurred keys go to the same kernels of torch."""
    monkeypatch.setattr(library_attention, "compute_capability", lambda index: 90)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: is_on)
    monkeypatch.setattr(torch, "is_deterministic_algorithms_warn_only_enabled", lambda: warns)
    q: Any = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.bfloat16, shape=(2, 4, 256, 64))
    assert library_attention.choose(q, q, q) == kind


@pytest.mark.parametrize("backend, path", [("auto", "shapes only"), ("fused", "shapes only"), ("eager", "eager")])
def test_meta_tensors(backend: Backend, path: str) -> None:
    """Also where "fused" would refuse: a device that has no values has no kernels to lack."""
    assert choose(call_of("hard", 8, "meta", softcap=2.0), backend).path == path


@pytest.mark.parametrize("text", ["hard", "blur", "blur+hard+attndropout+drophead", "temperature"])
def test_the_choice_computes_nothing(text: str) -> None:
    """Where there is no mask to look at: the choice costs no operation and waits for no device."""

    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(func)

    call = call_of(text, 200, is_causal=True)
    with Refuse():
        choose(call, "auto")
