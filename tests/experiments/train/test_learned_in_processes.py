"""Rates that are learned, in a run of two processes: both learn the same ones."""

from __future__ import annotations

from pathlib import Path

import forks
import torch

from attentiondrop.experiments.train.epoch_log import EPOCHS

from .test_loop import training

METHOD = "blur(sigma_max=learnable(init=0.5,high=2.0))"


def one_rank(folder: Path) -> None:
    """Train, and write the learned rates. (An assertion that fails here makes the status of the process 1.)"""
    found = training(folder, METHOD, 0, "training.device=cpu", "training.accumulate=2")
    before = [rate.detach().clone() for rate in found.applied.parameters()]
    found.run(lambda epoch: None)
    after = [rate.detach() for rate in found.applied.parameters()]
    assert before and all(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    torch.save(after, folder / f"rates{found.accelerator.process_index}.pt")


def test_both_processes_learn_the_same_rates(tmp_path: Path) -> None:
    done = forks.two_ranks(one_rank, tmp_path)
    assert [status for status, _ in done] == [0, 0], done
    one, other = (torch.load(tmp_path / f"rates{rank}.pt") for rank in range(2))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    assert (tmp_path / EPOCHS).exists()
