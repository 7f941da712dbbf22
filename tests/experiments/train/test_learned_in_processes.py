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


def losses_and_kept(folder: Path, method: str, ends: tuple[int, ...], *changes: str) -> tuple[list[float], list[Any]]:
    """The losses of a run that is interrupted after these epochs, and what the method keeps in each process."""
    folder.mkdir()
    settings = [*ON_A_CPU, "training.epochs=3", *changes]
    done = forks.two_ranks(learning_rank.run_in_parts, folder, method, ends, settings)
    assert [status for status, _ in done] == [0, 0], done
    losses = [json.loads(line)["train_loss"] for line in (folder / EPOCHS).read_text().splitlines()]
    return losses, [torch.load(folder / f"kept{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize(
    "method", ["hard(p=entropy(target=0.9,start=0.3))", "headmask(count=1,choice=important)", "headpruning(share=0.5)"]
)
def test_a_resumed_run_gives_each_process_what_it_has_measured(method: str, tmp_path: Path) -> None:
    losses, kept = losses_and_kept(tmp_path / "whole", method, ())
    again, kept_again = losses_and_kept(tmp_path / "parts", method, (1,))
    assert again == losses and same(kept_again, kept)


def test_split_weights_are_trained_and_resumed_as_whole_ones_are(tmp_path: Path) -> None:
    """One epoch is not the best so far. The model has weights that cannot be split: one process has no part of them."""
    method, fsdp = "hard(p=entropy(target=0.9,start=0.3))", "training.parallel=fsdp"
    whole, _ = losses_and_kept(tmp_path / "whole", method, ())
    losses, kept = losses_and_kept(tmp_path / "split", method, (), fsdp)
    assert losses == pytest.approx(whole, rel=1e-5)
    again, kept_again = losses_and_kept(tmp_path / "resumed", method, (2,), fsdp)
    assert again == losses and same(kept_again, kept)


def test_weights_that_one_process_holds_and_spoils_are_a_divergence(tmp_path: Path) -> None:
    done = forks.two_ranks(learning_rank.spoil_a_weight, tmp_path, [*ON_A_CPU, "training.parallel=fsdp"])
    assert [status for status, _ in done] == [0, 0], done


@pytest.mark.parametrize("changes", [[], ["training.ema=0.9"], ["training.parallel=fsdp"]], ids=["ddp", "ema", "fsdp"])
def test_what_is_judged_is_what_is_stored(changes: list[str], tmp_path: Path) -> None:
    """The statistics of a batch norm, for example, are those of the data that its process has seen."""
    done = forks.two_ranks(learning_rank.keep_statistics, tmp_path, [*ON_A_CPU, "training.epochs=1", *changes])
    assert [status for status, _ in done] == [0, 0], done


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
