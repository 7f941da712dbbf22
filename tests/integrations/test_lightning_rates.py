"""Rates that are learned under the Lightning callback, in real fits: they move, are saved, and go on after a resume."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_two_ranks
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad

# Lightning warns of the deprecations of what it builds on while it is imported.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl = pytest.importorskip("lightning.pytorch")

from attentiondrop.integrations.lightning import AttentionDropCallback

pytestmark = pytest.mark.filterwarnings("ignore::Warning", "error::attentiondrop.AttentionDropWarning")

LEARNED = ad.BlurSmoothing(ad.Learnable(0.5, high=2.0))


class Net(pl.LightningModule):
    def __init__(self, steps: str = "automatic") -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.steps = steps
        self.automatic_optimization = steps == "automatic"

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
        torch.manual_seed(self.trainer.global_step)  # a step of a resumed fit draws as it did before

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = F.mse_loss(self.attention(batch, batch, batch, need_weights=False)[0], batch)
        if not self.automatic_optimization:
            wrapped = self.optimizers()
            optimizer = wrapped if self.steps == "manual" else wrapped.optimizer
            self.manual_backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=0.5)
        # A scheduler that knows the groups of its optimiser: none may be added behind its back.
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
                "interval": "step",
            },
        }


class Watch(pl.Callback):
    """Notes the rates after each batch."""

    def __init__(self, watched: AttentionDropCallback) -> None:
        self.watched, self.rates = watched, []

    def on_train_batch_end(self, *_: Any) -> None:
        self.rates += [rate for fields in self.watched.attachment.rates().values() for rate in fields.values()]


def fit(
    epochs: int = 1, net: Net | None = None, path: str | None = None, spec: Any = LEARNED, **options: Any
) -> tuple[Any, list[float], AttentionDropCallback]:
    torch.manual_seed(0)
    callback = AttentionDropCallback(spec, learning_rate=0.1)
    watch = Watch(callback)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback, watch],
        **options,
    )
    data = torch.randn(8, 6, 8, generator=torch.Generator().manual_seed(0))
    net = net or Net()
    trainer.fit(net, torch.utils.data.DataLoader(list(data), batch_size=4), ckpt_path=path)
    return trainer, watch.rates, callback


@pytest.mark.parametrize("steps", ["automatic", "manual"])
def test_rates_are_learned(steps: str) -> None:
    _, rates, _ = fit(2, Net(steps))
    assert len(rates) == 4 and len({0.5, *rates}) == 5, "each of four steps moves the rate"


def test_gradients_are_accumulated() -> None:
    _, rates, _ = fit(2, accumulate_grad_batches=2)
    assert rates[0] == 0.5 and rates[1] == rates[2] != 0.5 and rates[3] != rates[1]


def test_a_checkpoint_goes_on(tmp_path: Path) -> None:
    """One epoch, saved after the fit, and another from there: the rates of two epochs in one go."""
    _, expected, _ = fit(2)
    first, rates, _ = fit(1)
    path = str(tmp_path / "first.ckpt")
    first.save_checkpoint(path)
    _, rest, _ = fit(2, Net(), path)
    assert rates + rest == expected


def test_manual_steps_that_lightning_does_not_see_are_said() -> None:
    with pytest.warns(ad.AttentionDropWarning, match="no rate was learned"):
        fit(1, Net("behind its back"))


def test_fixed_rates_need_no_optimiser() -> None:
    _, rates, callback = fit(1, spec="hard(p=0.1)")
    assert rates == [] and callback.state_dict()["optimiser"] == {}


def test_several_callbacks_share_a_trainer() -> None:
    keys = {AttentionDropCallback(spec).state_key for spec in ({"a": "hard"}, {"b": "hard"}, "hard")}
    assert len(keys) == 3


def test_bad_learning_rate() -> None:
    with pytest.raises(ad.ArgumentError, match="learning_rate: expected a number >= 0"):
        AttentionDropCallback("hard", learning_rate=-1.0)


def worker(rank: int, kind: str) -> None:
    """One of two processes, as torchrun starts them."""
    import os

    import torch.distributed as dist

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test"}
    warnings.simplefilter("ignore")
    torch.use_deterministic_algorithms(True)
    _, rates, _ = fit(1, strategy="ddp", devices=2)
    found: list[Any] = [None, None]
    dist.all_gather_object(found, rates)
    assert found[0] == found[1] and rates[0] != 0.5, found


@pytest.mark.slow
def test_two_processes_learn_the_same_rates() -> None:
    run_two_ranks(__file__, "ddp")
