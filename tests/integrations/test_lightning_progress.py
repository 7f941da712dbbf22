"""The progress that the Lightning callback sets, in real fits: several optimisers, accumulation, resumes, no end."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attentiondrop as ad

# Lightning warns of the deprecations of what it builds on while it is imported.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl = pytest.importorskip("lightning.pytorch")

from attentiondrop.integrations.lightning import AttentionDropCallback

pytestmark = pytest.mark.filterwarnings("ignore::Warning", "error::attentiondrop.AttentionDropWarning")

SCHEDULE = "hard(p=warmup(0.4,share=0.5),k=2)"
BATCHES = 4


class Net(pl.LightningModule):
    """Steps its optimisers itself if it has several, in every `every`-th batch."""

    def __init__(self, optimisers: int = 1, every: int = 1) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.count, self.every = optimisers, every
        self.automatic_optimization = optimisers == 1
        self.seen: list[float] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor | None:
        self.seen.append(self.trainer.callbacks[0].attachment.progress)
        loss = self.attention(batch, batch, batch, need_weights=False)[0].square().mean()
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss)
        if (batch_idx + 1) % self.every == 0:
            for optimiser in self.optimizers():
                optimiser.step()
                optimiser.zero_grad()
        return None

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(self.count)]


class Stream(torch.utils.data.IterableDataset):
    """Batches whose number nobody knows."""

    def __iter__(self) -> Any:
        return iter(torch.randn(BATCHES, 6, 8))


def fit(net: Net, spec: str = SCHEDULE, stream: bool = False, path: str | None = None, **options: Any) -> Any:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    callbacks = [AttentionDropCallback(spec), *options.pop("callbacks", [])]
    trainer = pl.Trainer(accelerator="cpu", callbacks=callbacks, **quiet, **options)
    data = Stream() if stream else list(torch.randn(BATCHES, 6, 8))
    trainer.fit(net, torch.utils.data.DataLoader(data, batch_size=1), ckpt_path=path)
    return trainer


@pytest.mark.parametrize(
    "net, options, expected",
    [
        ({}, {"max_epochs": 2}, [0, 1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8, 6 / 8, 7 / 8]),
        ({}, {"max_epochs": 1, "accumulate_grad_batches": 2}, [0, 0, 1 / 2, 1 / 2]),
        ({}, {"max_steps": 2}, [0, 1 / 2]),
        ({"optimisers": 2}, {"max_epochs": 1}, [0, 1 / 4, 2 / 4, 3 / 4]),
        ({"optimisers": 2, "every": 4}, {"max_epochs": 1}, [0, 1 / 4, 2 / 4, 3 / 4]),
        # Lightning stops after this number of steps of all optimisers.
        ({"optimisers": 2}, {"max_steps": 6}, [0, 1 / 3, 2 / 3]),
        ({"optimisers": 2}, {"max_epochs": 1, "max_steps": 6}, [0, 1 / 3, 2 / 3]),
        ({"optimisers": 2}, {"max_epochs": 1, "max_steps": 100}, [0, 1 / 4, 2 / 4, 3 / 4]),
        ({"optimisers": 2}, {"max_epochs": 1, "max_steps": 6, "stream": True}, [0, 1 / 3, 2 / 3]),
    ],
)
def test_progress(net: dict[str, int], options: dict[str, Any], expected: list[float]) -> None:
    module = Net(**net)
    fit(module, **options)
    assert module.seen == pytest.approx(expected)


@pytest.mark.parametrize(
    "scheduling, expected",
    [
        ({0: 4, 1: 1}, [0, 0, 0, 0, 1 / 2, 5 / 8, 6 / 8, 7 / 8]),
        ({0: 1, 1: 3}, [0, 1 / 8, 2 / 8, 3 / 8, 1 / 2, 1 / 2, 1 / 2, 3 / 4]),
    ],
)
def test_accumulation_that_changes_from_epoch_to_epoch(scheduling: dict[int, int], expected: list[float]) -> None:
    """Lightning's own estimate of the steps of a fit then changes within the fit."""
    module = Net()
    fit(module, max_epochs=2, callbacks=[pl.callbacks.GradientAccumulationScheduler(scheduling)])
    assert module.seen == pytest.approx(expected)


class Save(Net):
    """Saves a checkpoint after some batches."""

    def __init__(self, path: str, batches: int, optimisers: int) -> None:
        super().__init__(optimisers)
        self.path, self.batches = path, batches

    def on_train_batch_end(self, *_: Any) -> None:
        if len(self.seen) == self.batches:
            self.trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("optimisers", [1, 2])
@pytest.mark.parametrize("batches", [2, 4, 5])
def test_a_resumed_fit_goes_on(tmp_path: Path, batches: int, optimisers: int) -> None:
    """In the middle of an epoch, and at its end."""
    path = str(tmp_path / "some.ckpt")
    whole, rest = Save(path, batches, optimisers), Net(optimisers)
    fit(whole, max_epochs=2)
    fit(rest, path=path, max_epochs=2)
    assert whole.seen == [index / 8 for index in range(8)]
    assert rest.seen == whole.seen[batches:]


@pytest.mark.parametrize("optimisers", [1, 2])
def test_a_fit_that_stopped_within_an_epoch_ends_at_its_end(tmp_path: Path, optimisers: int) -> None:
    """Lightning resumes it with the next epoch."""
    first, rest = Net(optimisers), Net(optimisers)
    path = str(tmp_path / "first.ckpt")
    fit(first, max_epochs=2, max_steps=2 * optimisers).save_checkpoint(path)
    fit(rest, path=path, max_epochs=2)
    assert len(first.seen) == 2 and rest.seen == [4 / 8, 5 / 8, 6 / 8, 7 / 8]


ENDLESS = [
    {"max_epochs": -1, "max_time": {"seconds": 1}},  # `Stop` ends it earlier
    {"max_epochs": 1, "stream": True},
]


class Stop(Net):
    def on_train_batch_end(self, *_: Any) -> None:
        self.trainer.should_stop = len(self.seen) >= 2


@pytest.mark.parametrize("optimisers", [1, 2])
@pytest.mark.parametrize("options", ENDLESS)
def test_a_fit_without_a_known_end_is_said(options: dict[str, Any], optimisers: int) -> None:
    with pytest.warns(ad.AttentionDropWarning, match="the length of this fit is unknown") as found:
        fit(Stop(optimisers), **options)
    assert len([one for one in found if issubclass(one.category, ad.AttentionDropWarning)]) == 1


@pytest.mark.parametrize("spec", ["hard(p=0.1)", "dropkey(p=depth(0.3,0.0))", "hard(p=entropy(0.5),k=2)"])
def test_rates_without_a_schedule_need_no_end(spec: str) -> None:
    fit(Stop(), spec, max_epochs=-1)
