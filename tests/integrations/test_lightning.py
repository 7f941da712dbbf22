"""The Lightning callback and mixin, on a real fit of a tiny module."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch.attach.sites import site_of

# Lightning warns of the deprecations of what it builds on while it is imported.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl = pytest.importorskip("lightning.pytorch")

from attentiondrop.integrations.lightning import AttentionDropCallback, ConsistencyMixin

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(ConsistencyMixin, pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(16, 5)
        self.seen: list[tuple[int, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))

    def task_loss(self, output: Tensor, batch: Any) -> Tensor:
        self.seen.append((len(output), sum(site_of(module) is not None for module in self.modules())))
        return F.cross_entropy(output, batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module: Net, callback: AttentionDropCallback, batches: int = 2, data: Any = None, **options: Any) -> Any:
    data = [(torch.randn(6, 16), index % 5) for index in range(4 * batches)] if data is None else data
    trainer = pl.Trainer(
        max_epochs=options.pop("max_epochs", 1),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
        **options,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return trainer


@pytest.mark.parametrize("mode", ["batch", "sequential", "shared"])
def test_a_fit(mode: str) -> None:
    net = Net()
    net.consistency_mode = mode
    callback = AttentionDropCallback({"encoder.layers.2.*": "dropkey(p=0.4)+consistency(weight=0.5,task=mean)"})
    before = net.head.weight.clone()
    trainer = fit(net, callback, accumulate_grad_batches=2)
    assert net.seen == [(4, 1)] * 4, "two batches of two views, attached to one site"
    assert trainer.callback_metrics["train_divergence"] > 0
    assert not torch.equal(net.head.weight, before)
    assert all(site_of(module) is None for module in net.modules()) and callback.attachment is None


def test_the_callback_detaches_after_an_error_and_sets_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    from attentiondrop.torch.attach.attachment import Attachment

    progress: list[float] = []
    monkeypatch.setattr(Attachment, "set_progress", lambda self, x: progress.append(x), raising=False)
    net = Net()
    net.consistency = ad.Consistency()
    net.task_loss = lambda output, batch: 1 / 0 if progress[-1] > 0 else output.square().mean()
    with pytest.raises(ZeroDivisionError):
        fit(net, AttentionDropCallback("hard", submodule="encoder"))
    assert progress[-2:] == [0.0, 0.5]
    assert all(site_of(module) is None for module in net.modules())


class OwnStep(Net):
    consistency = 0.5

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.task_loss(self(batch[0]), batch)


class Calling(OwnStep):
    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.consistency_loss(batch[0], lambda output: self.task_loss(output, batch)).loss


class Plain(OwnStep):
    consistency = None


class Base(pl.LightningModule):
    ended = 0

    def on_train_batch_end(self, *args: Any) -> None:
        self.ended += 1


class WithBase(OwnStep, Base):
    pass


@pytest.mark.parametrize(
    ("module", "batches", "warned"),
    [(OwnStep, 3, False), (OwnStep, 6, True), (WithBase, 6, True), (Calling, 6, False), (Plain, 6, False)],
)
def test_an_own_step_that_leaves_out_the_loss(
    module: type[Net], batches: int, warned: bool, recwarn: pytest.WarningsRecorder
) -> None:
    net = module()
    fit(net, AttentionDropCallback("dropkey(p=0.4)"), batches=batches)
    found = [str(one.message) for one in recwarn.list if isinstance(one.message, ad.AttentionDropWarning)]
    assert len(found) == warned
    if warned:
        assert f"training_step of {module.__name__} replaces that of ConsistencyMixin" in found[0]
        assert "write task_loss(output, batch)" in found[0]
    assert getattr(net, "ended", batches) == batches, "hooks of other bases still run"


def test_the_callback_says_once_that_it_knows_no_progress(recwarn: pytest.WarningsRecorder) -> None:
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter([(torch.randn(6, 16), torch.tensor(0)) for _ in range(60)])

    class Stopping(Plain):
        def training_step(self, batch: Any, index: int) -> Tensor:
            self.trainer.should_stop = index == 13
            return super().training_step(batch, index)

    net = Stopping()
    fit(net, AttentionDropCallback("dropkey(p=warmup(0.4))"), data=Endless(), max_epochs=-1)
    found = [str(one.message) for one in recwarn.list if isinstance(one.message, ad.AttentionDropWarning)]
    assert len(net.seen) == 14
    assert len(found) == 1 and "the length of this fit is unknown" in found[0]


def test_without_settings() -> None:
    with pytest.raises(ad.ArgumentError, match=r"no consistency settings: pass consistency="):
        fit(Net(), AttentionDropCallback("dropkey(p=0.4)"))


def test_batches() -> None:
    net = Net()
    assert net.model_inputs([1, 2]) == 1 and net.model_inputs({"x": 1, "labels": 2}) == {"x": 1}
    with pytest.raises(ad.ArgumentError, match="override model_inputs"):
        net.model_inputs(torch.zeros(2))
    with pytest.raises(NotImplementedError, match="task_loss"):
        ConsistencyMixin().task_loss(None, None)
