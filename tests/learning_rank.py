"""What one of two processes does that train. A module of its own, so that a new process can import it."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

METHOD = "blur(sigma_max=learnable(init=0.5,high=2.0))"


def split_on_a_cpu() -> None:
    """Let FSDP split the weights here, too: accelerate does so on GPUs only, and trains as DDP elsewhere."""
    from accelerate import PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    from attentiondrop.experiments.train import accelerator, loop

    usual = accelerator.make_accelerator

    def make(settings: Any) -> Any:
        found = usual(settings)
        assert found.distributed_type != DistributedType.FSDP  # then accelerate takes no plugin, on a GPU either
        for state in (AcceleratorState, PartialState):
            state._shared_state["distributed_type"] = DistributedType.FSDP
        found.state.fsdp_plugin = accelerator._fsdp(settings)
        return found

    loop.make_accelerator = make


def training(folder: Path, method: str, changes: list[str]) -> Any:
    from attentiondrop.experiments.config.recipe_files import read_recipe
    from attentiondrop.experiments.methods.parse import read_method
    from attentiondrop.experiments.tasks.classification.data import load_data
    from attentiondrop.experiments.train.loop import Training

    recipe = read_recipe("digits", "demo", changes)
    if recipe.training.parallel == "fsdp":
        split_on_a_cpu()
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


def spoil_a_weight(folder: Path, changes: list[str]) -> None:
    """Train, and in the last step spoil weights that only one process holds. All must notice."""
    found, steps = training(folder, "none", changes), []
    count = found.step.count

    def spoil() -> None:
        count()
        steps.append(1)
        if len(steps) == found.steps and found.accelerator.process_index == 1:
            found.plain.head.weight.to_local().data.fill_(math.nan)

    found.step.count = spoil
    (epoch,) = found.run(lambda epoch: None)
    assert epoch.train_loss is None and epoch.validation is None


def keep_statistics(folder: Path, changes: list[str]) -> None:
    """Train a model with statistics that differ between the processes. The stored ones are those that were judged."""
    from attentiondrop.experiments.train import checkpoint
    from attentiondrop.experiments.train.epoch_log import BEST

    found = training(folder, "none", changes)
    judged: list[torch.Tensor] = []
    model = found.plain if found.ema is None else found.ema.module
    model.register_buffer("statistics", torch.full((2,), 1.0 + found.accelerator.process_index))
    model.register_forward_hook(lambda model, *_: None if model.training else judged.append(model.statistics.clone()))
    found.run(lambda epoch: None)
    stored = checkpoint.load_weights(folder / BEST)["statistics"]
    assert judged and all(torch.equal(one, stored) for one in judged)


def wait_for_another_command(finished: Path, job: Any) -> None:
    """Execute a job whose lock another command holds at first. That one then finishes the run."""
    from attentiondrop.experiments.runs import execute

    class Held:
        def __init__(self, *args: object, **options: object) -> None: ...

        def __enter__(self) -> None:
            time.sleep(3)
            shutil.copytree(finished, job.folder, dirs_exist_ok=True)

        def __exit__(self, *error: object) -> None: ...

    execute.FileLock = Held
    assert execute.execute(job).status == "finished"
