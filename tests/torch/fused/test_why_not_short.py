"""Which calls the kernels for short rows serve, and the reasons against them. (Fake tensors say that they are on CUDA.)"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch import dispatch
from attentiondrop.torch.call.inputs import Options, normalise
from attentiondrop.torch.call.known_calls import describe
from attentiondrop.torch.call.leaves import Driven, active_leaves
from attentiondrop.torch.call.one_call import Call, make_call
from attentiondrop.torch.call.stages import Plan
from attentiondrop.torch.fused import why_not_short
from attentiondrop.torch.fused.short_rows import Kind, kind_of, written_plan
from attentiondrop.torch.kernels.short.plans import read

HARD = ad.HardMasking(p=0.1, k=5)
BLUR = ad.BlurSmoothing(0.5)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ad.AttentionDropWarning)  # widths above 9 are unusual
    WIDE, TOO_WIDE = ad.BlurSmoothing(0.5, width=17, sampling="head"), ad.BlurSmoothing(0.5, width=19)


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(why_not_short, "_why_no_short_kernels", lambda *_: None)
    monkeypatch.setattr(why_not_short, "_most_short_keys", lambda *_: 256)
    monkeypatch.setattr(why_not_short, "has_kernels", lambda _: True)
    with FakeTensorMode():
        yield


def made(
    spec: Spec | Driven | None = HARD,
    shape: tuple[int, int, int, int] = (2, 4, 50, 64),
    keys: int | None = None,
    key_heads: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    value_size: int | None = None,
    groups: int = 1,
    **options: Any,
) -> tuple[Call, Plan]:
    """A call, and what happens at which stage of it."""
    batch, heads, rows, size = shape
    keys, key_heads = keys or rows, key_heads or heads

    def tensor(*sizes: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device=device)

    for name in ("attn_mask", "bias"):
        if name in options:
            options[name] = tensor(*options[name], dtype=torch.bool if name == "attn_mask" else dtype)
    chosen = Options(**options, enable_gqa=heads != key_heads)
    inputs = normalise(
        tensor(*shape), tensor(batch, key_heads, keys, size), tensor(batch, key_heads, keys, value_size or size), chosen
    )
    seed = tensor(dtype=torch.int64)
    leaves = [] if spec is None else active_leaves(spec, seed, torch.float32, groups)
    call = make_call(inputs, leaves, chosen, seed)
    plan = dispatch.plan_of(leaves)
    assert isinstance(plan, Plan)
    return call, plan


def reason(*args: Any, **options: Any) -> str | None:
    return why_not_short.why_not_short(*made(*args, **options))


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"attn_mask": (2, 4, 1, 50)},
        {"keys": 256},
        {"keys": 1, "shape": (1, 1, 1, 16)},
        {"shape": (2, 4, 3000, 32), "keys": 77},
        {"shape": (2, 8, 2**21 - 1, 64), "keys": 77},
        {"dtype": torch.float16, "shape": (2, 4, 50, 128)},
        {"spec": ad.DropKey(0.1), "is_causal": True},
        {"spec": ad.HardMasking(p=0.1, k=300)},
        {"spec": ad.HardMasking(p=0.1, k=300), "keys": 200},
        {"spec": ad.HardMasking(p=0.1, k=64, fill="-inf"), "keys": 70},
        {"spec": ad.AttentionDropout(0.1), "attn_mask": (2, 1, 1, 50)},
        {"spec": None, "dropout_p": 0.1},
        {"spec": BLUR, "keys": 256},
        {"spec": ad.Compose([BLUR, HARD]), "keys": 256},
        {"spec": WIDE},
        {"spec": ad.Compose([BLUR, HARD, ad.DropHead(0.1)])},
        {"key_heads": 2, "attn_mask": (2, 1, 1, 50)},
        {"dropout_p": 0.1, "is_causal": True},
        {"spec": ad.Compose([HARD, ad.AttentionDropout(0.1)])},
        {"spec": ad.Compose([BLUR, ad.AttentionDropout(0.1)]), "is_causal": True, "keys": 256},
        {"spec": BLUR, "is_causal": True},
        {"spec": ad.DropKey(0.1, by="column"), "is_causal": True},
        {"spec": ad.Compose([BLUR, ad.DropAttention(0.1, span=2)]), "is_causal": True, "dropout_p": 0.1},
    ],
    ids=str,
)
def test_served(call: dict[str, Any]) -> None:
    assert reason(**call) is None


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"device": "cpu"}, "need CUDA"),
        ({"keys": 257}, "up to 256 keys"),
        ({"dtype": torch.float32}, r"rows of torch\.float32"),
        ({"shape": (2, 4, 50, 80)}, "head size of 16, 32, 64, 128"),
        ({"value_size": 32}, "head size"),
        ({"shape": (1, 8, 2**21, 64), "keys": 77}, "at most 2147483647 bytes of a sample"),
        ({"shape": (1, 2**16, 1, 64), "keys": 256}, "at most 2147483647 bytes of a sample"),
        ({"bias": (1, 4, 50, 50)}, "no additive bias"),
        ({"scale": -1.0}, "no scale of 0 or less"),
        ({"spec": ad.GaussianNoise(0.1)}, "no noise"),
        ({"spec": ad.AttentionDropout(0.1), "dropout_p": 0.1}, "one drop and one dropout"),
        ({"spec": ad.Compose([HARD, ad.DropAttention(0.1)])}, "one drop and one dropout"),
        ({"spec": ad.HardMasking(p=0.1, k=65), "keys": 70}, "at most 64 of the largest"),
        ({"attn_mask": (2, 1, 50, 50)}, "masks of keys only"),
        ({"key_heads": 2, "attn_mask": (2, 4, 1, 50)}, "need one mask"),
        ({"spec": TOO_WIDE}, "width of at most 17"),
        ({"spec": ad.BlurSmoothing(0.5, axes="both")}, "along the keys"),
        ({"spec": ad.Compose([BLUR, BLUR])}, "blur once"),
        ({"spec": BLUR, "keys": 257}, "up to 256 keys"),
        ({"spec": ad.BlurSmoothing(0.5, sampling="head"), "key_heads": 2}, "need one sigma"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_not_served(call: dict[str, Any], why: str) -> None:
    found = reason(**call)
    assert found is not None

    assert re.search(why, found), found


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (HARD, Kind("largest", 5, False)),
        (ad.HardMasking(p=0.1, k=50, fill="-inf"), Kind("every", 0, True)),
        (ad.DropKey(0.1), Kind("every", 0, True)),
        (ad.DropKey(0.1, by="column"), Kind("every", 0, True, by_column=True)),
        (ad.DropAttention(0.1, span=3), Kind("every", 0, True, shares=True, span=3)),
        (ad.DropAttention(0.1, by="column"), Kind("every", 0, True, by_column=True, shares=True)),
    ],
    ids=str,
)
def test_what_the_kernels_are_told(spec: Spec, kind: Kind) -> None:
    (leaf,) = active_leaves(spec, torch.zeros((), dtype=torch.int64), torch.float32)
    assert kind_of(leaf, 50) == kind


def test_the_plan_of_a_blur_has_the_groups_of_the_batch() -> None:
    one, three = (read(written_plan(*made(BLUR, (6, 4, 50, 64), groups=groups))) for groups in (1, 3))
    assert one.groups == 1 and three == one._replace(groups=3)


def test_calls_that_differ_are_not_taken_for_each_other() -> None:
    """A call that looks like an earlier one skips all checks: whatever they read must be a part of how it looks."""
    q, k, v = (torch.empty(2, 4, 50, 64, dtype=torch.bfloat16) for _ in range(3))
    known = describe(q, k, v, HARD, Options(), "auto")
    assert known == describe(q.clone(), k.clone(), v.clone(), ad.HardMasking(p=0.1, k=5), Options(), "auto")
    others = [
        *(
            describe(*changed, HARD, Options(), "auto")
            for changed in ((q, k.float(), v), (q, k, v.half()), (q.half(), k, v))
        ),
        *(
            describe(*changed, HARD, Options(), "auto")
            for changed in ((q[:1], k, v), (q, k[:, :2], v), (q, k, v[..., :32]))
        ),
        describe(q, k, v.to("meta"), HARD, Options(), "auto"),
        describe(q, k, v, HARD, Options(), "fused"),
        describe(q, k, v, ad.HardMasking(p=0.2, k=5), Options(), "auto"),
        *(
            describe(q, k, v, HARD, Options(**option), "auto")
            for option in ({"dropout_p": 0.1}, {"is_causal": True}, {"scale": 0.5}, {"enable_gqa": True})
        ),
    ]
    assert None not in others
    assert len({known, *others}) == len(others) + 1
    mask = torch.ones(50, dtype=torch.bool)
    for option in ({"attn_mask": mask}, {"bias": mask.float()}, {"softcap": 1.0}, {"sinks": torch.zeros(4)}):
        assert describe(q, k, v, HARD, Options(**option), "auto") is None


@pytest.mark.parametrize(
    ("sampling", "groups", "values", "served"),
    [
        ("batch", 1, {"sigma_max": 0.5}, True),
        ("batch", 2, {"sigma_max": 0.5}, True),
        ("sample", 1, {"sigma_max": 0.5}, True),
        ("batch", 1, {"sigma_max": 0.5, "sigma_min": 0.1}, True),
        ("batch", 2, {"sigma_max": 0.5, "sigma_min": 0.1}, False),
        ("sample", 1, {"sigma_max": 0.5, "sigma_min": 0.1}, False),
        ("batch", 1, {"sigma_max": [0.5] * 4}, False),
    ],
)
def test_a_blur_whose_rates_are_tensors(sampling: str, groups: int, values: dict[str, Any], served: bool) -> None:
    tensors = {field: torch.tensor(value, device="cuda") for field, value in values.items()}
    why = reason(Driven(ad.BlurSmoothing(0.5, sampling=sampling), {0: tensors}), groups=groups)
    assert why is None if served else "take a sigma that is a tensor if" in str(why)
