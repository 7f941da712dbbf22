"""ScheduleCallback: the Trainer drives schedules, and a resumed training goes on with the same rates."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from consistency_models import BERT, hugging
from torch import nn

import attentiondrop as ad
from attentiondrop.torch import attach
from attentiondrop.torch.attach.attachment import Attachment

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import TrainerControl, TrainerState, TrainingArguments  # noqa: E402

from attentiondrop.integrations.transformers import ScheduleCallback  # noqa: E402

ADAPTIVE = "hard(p=entropy(0.5,start=0.2),k=3)"
LEARNED = "blur(sigma_max=learnable(0.5,high=2.0))"
IMPORTANT = "headmask(count=1,choice=important)"


def test_the_trainer_drives_schedules(tmp_path: object) -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    attachment = attach(model, ad.DropKey(ad.schedules.Linear(0.0, 0.4)))
    callback = ScheduleCallback(attachment)
    arguments, control = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[]), TrainerControl()
    seen = []
    for step in (0, 5, 10):
        callback.on_step_begin(arguments, TrainerState(global_step=step, max_steps=10), control)
        seen.append(attachment.specs()["self_attn"].p)
    assert seen == [0.0, 0.2, 0.4]
    # Resumed at step 5 of 10, and stopped there.
    callback.on_train_end(arguments, TrainerState(global_step=5, max_steps=10), control)
    assert attachment.progress == 0.5


def arguments_for(folder: Path, **extra: Any) -> TrainingArguments:
    options: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "save_steps": 2,
        "learning_rate": 0.01,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(str(folder), **options | extra)


def train(
    folder: Path, patterns: dict[str, str], resume: Path | None = None, watched: bool = True, **extra: Any
) -> tuple[nn.Module, list[Attachment]]:
    """Train a small BERT with one attachment for each pattern. The optimiser gets the learned rates as well."""
    torch.manual_seed(0)
    model = hugging("BertForSequenceClassification", **BERT)
    attachments = [attach(model, {pattern: spec}) for pattern, spec in patterns.items()]
    rates = [rate for attachment in attachments for rate in attachment.parameters()]
    rows = [{"input_ids": torch.arange(3, 11) + row, "labels": torch.tensor(row % 2)} for row in range(16)]
    trainer = transformers.Trainer(
        model,
        arguments_for(folder, **extra),
        train_dataset=rows,
        callbacks=[ScheduleCallback(attachment) for attachment in attachments] if watched else [],
        optimizers=(torch.optim.AdamW([*model.parameters(), *rates], lr=0.01), None),
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return model, attachments


@pytest.mark.parametrize("watched", [False, True])
def test_a_trainer_without_the_callback_is_noticed(tmp_path: Path, watched: bool) -> None:
    def run() -> None:
        train(tmp_path, {"*": "dropkey(p=warmup(0.2))"}, watched=watched, max_steps=14, save_strategy="no")

    if watched:
        run()  # our warnings are errors here
        return
    with pytest.warns(ad.AttentionDropWarning, match=r"nobody sets the progress .* p stays at 0\.0") as found:
        run()
    ours = [one for one in found if isinstance(one.message, ad.AttentionDropWarning)]
    assert len(ours) == 1 and ours[0].filename == __file__


@pytest.mark.parametrize("given", [False, True])
def test_an_optimiser_without_the_learned_rates_is_noticed(tmp_path: Path, given: bool) -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    attachment = attach(model, LEARNED)
    rates = attachment.parameters() if given else ()
    optimiser = torch.optim.SGD([*model.parameters(), *rates])
    arguments = arguments_for(tmp_path), TrainerState(), TrainerControl()
    with contextlib.nullcontext() if given else pytest.warns(ad.AttentionDropWarning, match="not in the optimiser"):
        ScheduleCallback(attachment).on_train_begin(*arguments, model=model, optimizer=optimiser)


def test_gradients_of_rates_are_averaged_before_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer's wrapper of the model does not know these parameters. Afterwards, they have no gradient left."""
    seen: list[list[bool]] = []

    def average(attachment: Attachment) -> None:
        seen.append([rate.grad is not None for rate in attachment.parameters()])

    monkeypatch.setattr(Attachment, "average_gradients", average)
    _, (attachment,) = train(tmp_path, {"*": LEARNED}, max_steps=3, gradient_accumulation_steps=2, save_strategy="no")
    assert seen == [[True] * len(attachment.sites)] * 3
    assert all(rate.grad is None for rate in attachment.parameters())


def numbers(attachment: Attachment) -> dict[str, Any]:
    """The state of the attachment, in numbers that can be compared."""
    state = attachment.state_dict()
    parts = {part: {name: x.tolist() for name, x in state[part].items()} for part in ("learned", "importance")}
    return {"progress": state["progress"], "adaptive": state["adaptive"], **parts}


@pytest.mark.parametrize("spec", [ADAPTIVE, LEARNED, IMPORTANT])
def test_a_resumed_training_continues(tmp_path: Path, spec: str) -> None:
    """Four steps, or two of them again from a checkpoint that lies elsewhere: the same rates and the same weights."""
    model, (attachment,) = train(tmp_path / "first", {"*": spec})
    moved = (tmp_path / "first" / "checkpoint-2").rename(tmp_path / "moved")
    again, (resumed,) = train(tmp_path / "second", {"*": spec}, moved)
    assert numbers(resumed) == numbers(attachment)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), again.parameters(), strict=True))


def test_each_attachment_gets_its_own_state(tmp_path: Path) -> None:
    patterns = {"*.layer.0.*": ADAPTIVE, "*.layer.1.*": LEARNED, "*.layer.2.*": IMPORTANT}
    _, attachments = train(tmp_path / "first", patterns)
    _, resumed = train(tmp_path / "second", patterns, tmp_path / "first" / "checkpoint-2")
    assert [numbers(one) for one in resumed] == [numbers(one) for one in attachments]


def test_transformers_can_restore_its_own_callbacks(tmp_path: Path) -> None:
    """The option builds stateful callbacks anew from JSON, which an attachment cannot be."""
    _, (attachment,) = train(tmp_path / "first", {"*": ADAPTIVE})
    path, restore = tmp_path / "first" / "checkpoint-2", {"restore_callback_states_from_checkpoint": True}
    _, (resumed,) = train(tmp_path / "second", {"*": ADAPTIVE}, path, **restore)
    assert numbers(resumed) == numbers(attachment)


@pytest.mark.parametrize("spec", [ADAPTIVE, LEARNED, IMPORTANT])
def test_a_checkpoint_without_state_is_said(tmp_path: Path, spec: str) -> None:
    train(tmp_path, {"*": spec}, watched=False)
    with pytest.warns(ad.AttentionDropWarning, match="no state of this attachment"):
        train(tmp_path, {"*": spec}, tmp_path / "checkpoint-2")


def test_a_search_for_hyperparameters_touches_no_checkpoint(tmp_path: Path) -> None:
    """Its own checkpoints lie elsewhere; those in the output folder are of another training."""
    attachment = attach(hugging("BertForSequenceClassification", **BERT), ADAPTIVE)
    file = tmp_path / "checkpoint-2" / "trainer_state.json"
    file.parent.mkdir()
    file.write_text("{}")
    state = TrainerState(global_step=2, is_hyper_param_search=True)
    ScheduleCallback(attachment).on_save(arguments_for(tmp_path), state, TrainerControl())
    assert file.read_text() == "{}"


def test_schedules_need_no_state(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    train(tmp_path, {"*": "dropkey(p=linear(0.0,0.4))"}, watched=False)
    train(tmp_path, {"*": "dropkey(p=linear(0.0,0.4))"}, tmp_path / "checkpoint-2")
    assert not [found for found in recwarn if issubclass(found.category, ad.AttentionDropWarning)]
