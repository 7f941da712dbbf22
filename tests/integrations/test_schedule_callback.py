from __future__ import annotations

from torch import nn
from transformers import TrainerControl, TrainerState, TrainingArguments

import attentiondrop as ad
from attentiondrop.integrations.transformers import ScheduleCallback
from attentiondrop.torch import attach


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
