"""Errors in words: one short line for people, whatever was raised."""

from __future__ import annotations

import errno

import torch

from ..errors import AttentionDropError

_OUT_OF_MEMORY = (
    "out of memory: make training.batch_size smaller, split batches with training.accumulate, or set "
    "training.precision=bfloat16 or model.checkpoint_activations=true"
)
#: Nothing more can be written, so no other run could be recorded either.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
#: Some libraries put whole tensors or tables into a message; the traceback has all of it.
_LONGEST = 400


def in_words(error: BaseException) -> str:
    """One line; the kind of an error is named unless it is one of ours, whose messages need none."""
    if is_lack_of_memory(error):
        return _OUT_OF_MEMORY
    text = " ".join(str(error).split())
    if not isinstance(error, AttentionDropError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def is_lack_of_space(error: BaseException) -> bool:
    """Whether the disk is full, or cannot be written to at all."""
    return isinstance(error, OSError) and error.errno in _NO_SPACE


def is_lack_of_memory(error: BaseException) -> bool:
    """Of the accelerator or of the machine."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # On a CPU torch has no class of its own for it.
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)
