"""Set the progress of an attachment, and so its schedules, from a transformers `Trainer`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..torch.attach.attachment import Attachment


class ScheduleCallback(TrainerCallback):  # type: ignore[misc]
    """Before every step, tell the attachment how much of the training is done.

    The progress comes from the trainer's own state, so a resumed run continues with the same rates.

    Example:
        >>> import attentiondrop as ad
        >>> from torch import nn
        >>> from attentiondrop.torch import attach
        >>> model = nn.TransformerEncoderLayer(d_model=16, nhead=2, batch_first=True)
        >>> attachment = attach(model, ad.HardMasking(p=ad.schedules.Warmup(0.1)))
        >>> callback = ScheduleCallback(attachment)  # Trainer(..., callbacks=[callback])
    """

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called by the trainer."""
        self.attachment.set_progress(min(1.0, state.global_step / max(1, state.max_steps)))

    #: At the end the progress is that of the last step, also if the run stopped early.
    on_train_end = on_step_begin
