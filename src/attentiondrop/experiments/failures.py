"""Turn any exception into one short line for people."""

from __future__ import annotations

import errno

import torch

from ..errors import AttentionDropError

_OUT_OF_MEMORY = (
    "out of memory: make training.batch_size smaller, split batches with training.accumulate, or set "
    "training.precision=bfloat16 or model.checkpoint_activations=true"
)
#: With these errors nothing can be written any more, so no other run could be recorded either.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
#: Some libraries put whole tensors or tables into a message. The traceback keeps the full text.
_LONGEST = 400


def in_words(error: BaseException) -> str:
    """The error in one line. Errors of other libraries begin with the name of their class; ours do not need it."""
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
    """Whether the accelerator or the machine has run out of memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # On a CPU torch raises a plain RuntimeError.
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)
