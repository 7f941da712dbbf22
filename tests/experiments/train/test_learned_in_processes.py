"""Runs of two processes: both learn the same rates, and each goes on with what it has measured itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forks
import learning_rank
import pytest
import torch

from attentiondrop.experiments.train.epoch_log import EPOCHS

from ..conftest import TINY

ON_A_CPU = [*TINY, "training.device=cpu"]


def test_both_processes_learn_the_same_rates(tmp_path: Path) -> None:
    done = forks.two_ranks(learning_rank.run, tmp_path, [*ON_A_CPU, "training.accumulate=2"])
    assert [status for status, _ in done] == [0, 0], done
    one, other = (torch.load(tmp_path / f"rates{rank}.pt") for rank in range(2))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "method", ["hard(p=entropy(target=0.9,start=0.3))", "headmask(count=1,choice=important)", "headpruning(share=0.5)"]
)
def test_a_resumed_run_gives_each_process_what_it_has_measured(method: str, tmp_path: Path) -> None:
    found = []
    for ends in ((), (1,)):
        folder = tmp_path / f"parts{len(ends)}"
        folder.mkdir()
        changes = [*ON_A_CPU, "training.epochs=3"]
        done = forks.two_ranks(learning_rank.run_in_parts, folder, method, ends, changes)
        assert [status for status, _ in done] == [0, 0], done
        losses = [json.loads(line)["train_loss"] for line in (folder / EPOCHS).read_text().splitlines()]
        found.append((losses, *(torch.load(folder / f"kept{rank}.pt") for rank in range(2))))
    whole, parts = found
    assert whole[0] == parts[0]
    assert all(same(*pair) for pair in zip(whole[1:], parts[1:], strict=True))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
