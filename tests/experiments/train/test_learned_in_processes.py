"""Rates that are learned, in a run of two processes: both learn the same ones."""

from __future__ import annotations

from pathlib import Path

import forks
import learning_rank
import torch

from ..conftest import TINY


def test_both_processes_learn_the_same_rates(tmp_path: Path) -> None:
    done = forks.two_ranks(learning_rank.run, tmp_path, [*TINY, "training.device=cpu", "training.accumulate=2"])
    assert [status for status, _ in done] == [0, 0], done
    one, other = (torch.load(tmp_path / f"rates{rank}.pt") for rank in range(2))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
