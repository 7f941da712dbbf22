"""One of two processes that train. A module of its own, so that a new process can import it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

METHOD = "blur(sigma_max=learnable(init=0.5,high=2.0))"


def training(folder: Path, method: str, changes: list[str]) -> Any:
    from attentiondrop.experiments.config.recipe_files import read_recipe
    from attentiondrop.experiments.methods.parse import read_method
    from attentiondrop.experiments.tasks.classification.data import load_data
    from attentiondrop.experiments.train.loop import Training

    recipe = read_recipe("digits", "demo", changes)
    return Training(recipe, read_method(method), 0, load_data(recipe.data), folder)


def run(folder: Path, changes: list[str]) -> None:
    """Train, and write the learned rates. (An assertion that fails here makes the status of the process 1.)"""
    found = training(folder, METHOD, changes)
    before = [rate.detach().clone() for rate in found.applied.parameters()]
    found.run(lambda epoch: None)
    after = [rate.detach() for rate in found.applied.parameters()]
    assert before and all(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    torch.save(after, folder / f"rates{found.accelerator.process_index}.pt")


def run_in_parts(folder: Path, method: str, ends: Sequence[int], changes: list[str]) -> None:
    """Train, interrupted after each of these epochs, and write what the method keeps in this process."""
    for end in (*ends, None):
        found = training(folder, method, changes)
        found.resume()

        def stop(epoch: Any, end: int | None = end) -> None:
            if epoch.epoch == end:
                raise KeyboardInterrupt

        try:
            found.run(stop)
        except KeyboardInterrupt:
            assert end is not None
    torch.save(found.applied.state_dict(), folder / f"kept{found.accelerator.process_index}.pt")
