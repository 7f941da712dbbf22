"""Drops in the kernels for short rows, without a GPU: the whole kernels run on the CPU (see `emulation`)."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from emulation import COMPILER, DEVICES, Emulator
from parity import Case
from worst import Worst

import attentiondrop as ad
from attentiondrop.torch import dispatch, functional
from attentiondrop.torch.call.one_call import Call
from attentiondrop.torch.call.stages import Plan

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ad.AttentionDropWarning)  # extreme rates are part of the test
    SPECS = {
        "hard": ad.HardMasking(p=0.4, k=5),
        "hard, many": ad.HardMasking(p=0.5, k=40),
        "hard, twelve": ad.HardMasking(p=1.0, k=12),
        "hidden": ad.HardMasking(p=0.5, k=3, fill="-inf"),
        "all hidden": ad.HardMasking(p=1.0, k=12, fill="-inf"),
        "keys": ad.DropKey(p=0.4),
        "most keys": ad.DropKey(p=0.8),
        "columns": ad.DropKey(p=0.4, by="column"),
        "dropout": ad.AttentionDropout(p=0.3),
        "nothing": ad.BlurSmoothing(width=1),
        "shares": ad.DropAttention(p=0.5),
        "most shares": ad.DropAttention(p=0.95),
        "spans": ad.DropAttention(p=0.4, by="column", span=3),
        "hard and dropout": ad.Compose([ad.HardMasking(p=0.4, k=5), ad.AttentionDropout(p=0.3)]),
        "blur, keys and dropout": ad.Compose([ad.BlurSmoothing(1.0), ad.DropKey(p=0.4), ad.AttentionDropout(0.2)]),
    }
SITUATIONS = {
    "197": Case("197", 2, 1, 1, 40, 197, 64, 64, seed=3),
    "few rows": Case("few rows", 2, 2, 2, 5, 50, 32, 32, seed=4),
    "one key": Case("one key", 2, 2, 2, 20, 1, 16, 16, seed=15),
    "256": Case("256", 1, 2, 2, 30, 256, 64, 64, seed=5),
    "padded, grouped": Case("padded", 2, 4, 2, 33, 70, 64, 64, mask="keys", seed=6),
    "blind": Case("blind", 2, 2, 2, 20, 130, 64, 64, mask="blind sample", seed=7),
    "causal": Case("causal", 2, 2, 2, 65, 65, 64, 64, is_causal=True, seed=8),
}
#: Hard masking looks for the k largest logits among the largest of each group of keys. Are there enough groups?
GROUPS = {
    "few groups": Case("few groups", 2, 1, 1, 20, 6, 16, 16, seed=6),
    "just enough groups": Case("just enough groups", 2, 1, 1, 20, 9, 16, 16, seed=6),
    "twelve groups are not there": Case("38", 2, 1, 1, 20, 38, 16, 16, seed=6),
    "twelve groups are there": Case("39", 2, 1, 1, 20, 39, 16, 16, seed=6),
}
#: In the backward by warpgroups, each row tile has its own place in memory, and units take turns: all rows, and three
#: units for a block. With 256 keys, a unit also has two steps.
TURNS = {
    "all rows": Case("all rows", 2, 3, 3, 197, 197, 64, 64, seed=9),
    "two steps": Case("two steps", 2, 3, 3, 200, 256, 64, 64, seed=10),
}
#: What is tested each time: what, where, and on which GPU. The rest takes minutes.
QUICK = [
    ("hard", ["197", "few groups", "just enough groups"], "H200"),
    ("hard, twelve", ["twelve groups are not there", "twelve groups are there"], "H200"),
    ("most keys", ["one key", "causal"], "H200"),
    ("keys", ["padded, grouped"], "A100"),
    ("shares", ["few rows"], "H200"),
    ("nothing", ["197", "padded, grouped", "one key"], "H200"),
]
ALL = [
    *((what, list(SITUATIONS), on) for what in SPECS for on in ("H200", "A100")),
    *((what, list(TURNS), "H200") for what in ("hard", "keys", "dropout", "nothing")),
]


@pytest.mark.parametrize(
    ("what", "where", "on"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in ALL)], ids=str
)
def test_drops_are_those_of_the_eager_path(
    what: str, where: list[str], on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator = Emulator(tmp_path, DEVICES[on])
    emulator.install(monkeypatch)
    choose = functional.choose

    def chosen(call: Call, backend: str) -> dispatch.Route:
        # (`Worst` also asks for attention without a drop: that is torch's own.)
        if backend == "eager" or not call.leaves or any(isinstance(leaf.spec, ad.DropHead) for leaf in call.leaves):
            return choose(call, "eager")
        plan = dispatch.plan_of(call.leaves)
        assert isinstance(plan, Plan)
        return dispatch.Route("short rows", call.with_compact_mask(look=len(plan.blurs) > 0), plan)

    monkeypatch.setattr(functional, "choose", chosen)
    worst = Worst()
    for one in where:
        case = (SITUATIONS | GROUPS | TURNS)[one]
        # (The kernels take the band of a causal blur from Triton's, which need a GPU.)
        if not (case.is_causal and "blur" in what):
            worst.add(SPECS[what], case, torch.bfloat16, "cpu")
    worst.check()
    assert len(emulator.ran) >= 2 and emulator.ran[0] == "forward"
