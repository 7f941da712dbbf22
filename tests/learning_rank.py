"""One of two processes that train with rates that are learned. A module of its own, so that a new process can import it."""

from __future__ import annotations

from pathlib import Path

import torch

METHOD = "blur(sigma_max=learnable(init=0.5,high=2.0))"


def run(folder: Path, changes: list[str]) -> None:
    """Train, and write the learned rates. (An assertion that fails here makes the status of the process 1.)"""
    from attentiondrop.experiments.config.recipe_files import read_recipe
    from attentiondrop.experiments.methods.parse import read_method
    from attentiondrop.experiments.tasks.classification.data import load_data
    from attentiondrop.experiments.train.loop import Training

    recipe = read_recipe("digits", "demo", changes)
    found = Training(recipe, read_method(METHOD), 0, load_data(recipe.data), folder)
    before = [rate.detach().clone() for rate in found.applied.parameters()]
    found.run(lambda epoch: None)
    after = [rate.detach() for rate in found.applied.parameters()]
    assert before and all(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    torch.save(after, folder / f"rates{found.accelerator.process_index}.pt")
