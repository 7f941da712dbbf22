"""A run without a method is the loop that anybody would write with torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.files.whole_files import read_lines
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.train import checkpoint
from attentiondrop.experiments.train.epoch_log import EPOCHS, LAST
from attentiondrop.experiments.train.loop import Training, initial_model
from attentiondrop.experiments.train.seeding import derived_seed
from attentiondrop.experiments.train.step import Average

from ..conftest import TINY

EPOCHS_OF_RUN, RATE, WARMUP = 3, 0.01, 0.4
SETTINGS = [
    f"training.epochs={EPOCHS_OF_RUN}",
    f"training.learning_rate={RATE}",
    f"training.warmup={WARMUP}",
    "training.weight_decay=0.3",
    "training.betas=[0.8, 0.95]",
    "training.clip=0.5",
    "training.label_smoothing=0.1",
]


def factor(schedule: str, step: int, steps: int) -> float:
    rise = round(WARMUP * steps)
    if step < rise:
        return (step + 1) / rise
    if schedule == "cosine":
        return (1 + math.cos(math.pi * (step - rise) / (steps - rise))) / 2
    return math.sqrt(rise / (step + 1))


@torch.no_grad()
def logits(model: nn.Module, weights: dict[str, torch.Tensor], data: Any) -> torch.Tensor:
    model.load_state_dict(weights)
    return torch.cat([model.eval()(images) for images, _ in data.batches("validation", 64)])


@pytest.mark.parametrize(
    ("schedule", "kept"), [("cosine", "training.ema=0.75"), ("inverse_sqrt", "training.average_last=2")]
)
def test_it_ends_with_the_weights_and_numbers_of_a_plain_loop(tmp_path: Path, schedule: str, kept: str) -> None:
    changes = [*TINY, *SETTINGS, f"training.schedule={schedule}", kept]
    recipe = read_recipe("digits", "demo", changes)
    data = load_data(recipe.data)
    run = Training(recipe, read_method("none"), 5, data, tmp_path)
    run.run(lambda epoch: None)
    lines, steps = read_lines(tmp_path / EPOCHS), EPOCHS_OF_RUN * 3

    model = initial_model(recipe, read_method("none"), 5, data).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.3, betas=(0.8, 0.95))
    average, after_epochs, norms, step = dict[str, torch.Tensor](), list[dict[str, torch.Tensor]](), list[float](), 0
    for epoch in range(EPOCHS_OF_RUN):
        losses = list[float]()
        for images, labels in data.train_batches(seed=derived_seed(5, "data"), epoch=epoch, batch_size=16):
            optimizer.param_groups[0]["lr"] = RATE * factor(schedule, step, steps)
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            losses.append(loss.item())
            now = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
            average = {name: 0.75 * average.get(name, new) + 0.25 * new for name, new in now.items()}
            step += 1
        after_epochs.append(now)
        assert lines[epoch]["train_loss"] == pytest.approx(sum(losses) / 3, rel=1e-4)
        assert lines[epoch]["learning_rate"] == pytest.approx(RATE * factor(schedule, step - 1, steps))
    assert step == steps and max(norms) > 0.5  # clipping changed something
    expected = average
    if "ema" not in kept:
        expected = {name: (after_epochs[1][name] + tensor) / 2 for name, tensor in now.items()}
    last = checkpoint.load_weights(tmp_path / LAST)
    # Outputs are compared: the bias of the keys has no influence on them, and so no gradient but rounding.
    outputs = [logits(model, each, data) for each in (expected, last, now, run.plain.state_dict())]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(outputs[3], outputs[2], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(outputs[0], outputs[2], rtol=1e-2, atol=1e-3)
    # Epochs are judged by the moving average, if there is one.
    model.load_state_dict(average if "ema" in kept else now)
    scores = run.task.scores(model, data, "validation", 64, None)
    assert lines[-1]["validation"]["nll"] == pytest.approx(scores["nll"], rel=1e-3)


def test_the_average_is_that_of_torch_for_counters_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.register_buffer("narrow", torch.ones(2, dtype=torch.float16))
    ours = AveragedModel(model, use_buffers=True)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.75), use_buffers=True)
    average = Average(ours, model, 0.75)
    for _ in range(4):
        model(torch.randn(8, 3))
        with torch.no_grad():
            for tensor in (*model.parameters(), model.narrow):
                tensor.add_(torch.randn_like(tensor))
        average.update(average.begins)
        ours.n_averaged += 1
        theirs.update_parameters(model)
        for name, tensor in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], tensor, msg=name)
