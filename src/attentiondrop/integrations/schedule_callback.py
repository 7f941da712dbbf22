"""Set the progress of an attachment, and so its schedules, from a transformers `Trainer`, and keep its state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import warn_outside
from ..specs import HeadMask
from ..torch.attach.attachment import Attachment
from ..torch.attach.sites import site_of

#: The entry for the states of attachments in `TrainerState.stateful_callbacks`.
_ENTRY = "attentiondrop"
#: The parts of the state of an attachment that hold tensors, and that JSON holds as lists.
_TENSORS = ("learned", "importance")


class ScheduleCallback(TrainerCallback):  # type: ignore[misc]
    """Before every step, tell the attachment how much of the training is done.

    The progress comes from the trainer's own state, so a resumed run continues with the same rates. Adaptive and
    learned rates and the importance of heads are in the `trainer_state.json` of each checkpoint, and a resumed run
    continues with them, too. With several processes, all of them continue with what the main process has measured.
    For learned rates, give the Trainer an optimiser that has `attachment.parameters()`. The gradients of these rates
    are averaged over all processes.

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

    # A callback is not told from which folder a training resumes. But it gets the `TrainerState` of that folder, so the
    # state of the attachment travels in there. (transformers' own `ExportableState` is of no use: on a resume it builds
    # callbacks anew from JSON, and it cannot save after a resume from a checkpoint without this callback.)
    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Called by the trainer. In a resumed training, restore the state of the attachment."""
        if _lacks_rates(optimizer, self.attachment) and not args.deepspeed:
            warn_outside(
                "ScheduleCallback: the rates of the attachment that are to be learned are not in the optimiser of the "
                "Trainer, so they stay where they are: pass Trainer(optimizers=(optimiser, None)) with an optimiser "
                "that has attachment.parameters() as well",
                "transformers",
            )
        if state.global_step == 0:
            return
        stored = state.stateful_callbacks.get(_ENTRY, {}).get(_key(self.attachment, model))
        if stored is not None:
            self.attachment.load_state_dict(_from_plain(stored))
        elif _has_state(self.attachment):
            warn_outside(
                "ScheduleCallback: the checkpoint has no state of this attachment: its adaptive and learned rates and "
                "the importance of its heads start anew",
                "transformers",
            )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called by the trainer."""
        self.attachment.set_progress(min(1.0, state.global_step / max(1, state.max_steps)))

    #: At the end the progress is that of the last step, also if the run stopped early.
    on_train_end = on_step_begin

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called by the trainer. Its wrapper of the model averages only gradients of the model over all processes."""
        self.attachment.average_gradients()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called by the trainer. It clears the gradients of the model only, so clear those of the learned rates."""
        for rate in self.attachment.parameters():
            rate.grad = None

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Called by the trainer when a checkpoint is complete. Write its `TrainerState` again, with our state in it."""
        # The checkpoints of a search for hyperparameters are in folders that a callback does not know.
        if not args.should_save or state.is_hyper_param_search:
            return
        states = state.stateful_callbacks.setdefault(_ENTRY, {})
        states[_key(self.attachment, model)] = _plain(self.attachment.state_dict())
        path = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", TRAINER_STATE_NAME)
        temporary = path.with_suffix(".tmp")
        state.save_to_json(str(temporary))
        os.replace(temporary, path)  # whole or not at all: without this file the checkpoint is of no use


def _lacks_rates(optimiser: Any, attachment: Attachment) -> bool:
    """Whether no learned rate of the attachment is in the optimiser. (With DeepSpeed nobody can tell.)"""
    groups = getattr(optimiser, "param_groups", ())
    held = {id(parameter) for group in groups for parameter in group["params"]}
    rates = {id(rate) for rate in attachment.parameters()}
    return bool(held and rates and not held & rates)


def _key(attachment: Attachment, model: nn.Module | None) -> str:
    """The name of the first module of the attachment in the model of the trainer: no other attachment has it."""
    sites = {id(site) for site in attachment.sites}
    modules = () if model is None else model.named_modules()
    return next((name for name, module in modules if id(site_of(module)) in sites), "")


def _has_state(attachment: Attachment) -> bool:
    """Whether training changes anything in the attachment but its progress."""
    leaves = (leaf for site in attachment.sites for leaf in site.spec.leaves())
    important = any(isinstance(leaf, HeadMask) and leaf.choice == "important" for leaf in leaves)
    state = attachment.state_dict()
    return bool(important or state["adaptive"] or state["learned"])


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of an attachment in JSON types. Python's numbers are exact for every number of a tensor."""
    parts = {part: {name: x.tolist() for name, x in state[part].items()} for part in _TENSORS}
    return {**state, **parts}


def _from_plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of an attachment that `_plain` turned into JSON types."""
    parts: dict[str, dict[str, Tensor]] = {
        part: {name: torch.tensor(x, dtype=torch.float64) for name, x in state[part].items()} for part in _TENSORS
    }
    return {**state, **parts}
