"""The Accelerator of a run: device, precision, processes."""

from __future__ import annotations

import dataclasses
import os
from types import MethodType
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils.operations import ConvertOutputsToFp32
from torch import nn

from ...errors import ArgumentError, bad_argument
from ..config.schema import Recipe, TrainingSettings
from ..tasks.checkpoint_files import with_checksum

_PRECISION = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


def device_of(settings: TrainingSettings) -> str:
    """The device to use on this machine. A device that the machine does not have is an error."""
    found = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if settings.device == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if found[name])
    if not found[settings.device]:
        raise ArgumentError(f"training.device {settings.device!r}: torch sees no such device on this machine")
    return settings.device


def on_this_machine(recipe: Recipe) -> Recipe:
    """The recipe with the actual device instead of `auto`, and with the checksum of pretrained weights.

    A run on another device, or from other weights, counts as another run.
    """
    training = dataclasses.replace(recipe.training, device=device_of(recipe.training))
    return dataclasses.replace(recipe, training=training, model=with_checksum(recipe.model))


def processes() -> int:
    """How many processes torchrun or `accelerate launch` started, this one included."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the process that writes files."""
    return int(os.environ.get("RANK", "0")) == 0


def make_accelerator(settings: TrainingSettings) -> Accelerator:
    """A new Accelerator. State of an earlier run is cleared, since that run may have had another precision."""
    device = device_of(settings)
    world = processes()
    share = settings.batch_size // settings.accumulate
    if share % world:
        raise bad_argument(
            "training.batch_size", f"a multiple of {world} processes x {settings.accumulate} parts", settings.batch_size
        )
    if settings.precision == "float16" and device == "cpu":
        raise bad_argument("training.precision", "'float32' or 'bfloat16' on a CPU", settings.precision)
    # Both classes keep one state for the whole process. With FSDP, so does the state below the first one: it says that
    # weights are split, and then a second Accelerator would have no plugin to split them with.
    AcceleratorState._reset_state(reset_partial_state=world > 1)
    GradientState._reset_state()
    return Accelerator(
        mixed_precision=_PRECISION[settings.precision],
        gradient_accumulation_steps=settings.accumulate,
        cpu=device == "cpu",
        fsdp_plugin=_fsdp(settings) if world > 1 else None,
    )


def prepare(accelerator: Accelerator, model: nn.Module, optimizer: Any, narrow_outputs: bool) -> tuple[Any, Any]:
    """The model and the optimiser as the Accelerator wraps them.

    With a lower precision, it turns the outputs of the model to float32. Every loss and every score here does that by
    itself. With `narrow_outputs` the copy is left out: a compiled loss then reads the logits in the precision that the
    model has computed them in. With thousands of classes they are the largest tensors of a step.
    """
    wrapped, prepared = accelerator.prepare(model, optimizer)
    if narrow_outputs:
        plain = accelerator.unwrap_model(wrapped)
        bound = getattr(plain.forward, "__func__", None)
        converting = getattr(bound or plain.forward, "__wrapped__", None)
        if isinstance(converting, ConvertOutputsToFp32):
            kept = converting.model_forward
            plain.forward = kept if bound is None else MethodType(kept, plain)
    return wrapped, prepared


def _fsdp(settings: TrainingSettings) -> Any:
    if settings.parallel != "fsdp":
        return None
    from accelerate import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap", cpu_ram_efficient_loading=False)
