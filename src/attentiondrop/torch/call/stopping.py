"""Stop the program if a tensor on a device says so, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

#: The most bytes of a message that torch's CUDA kernel takes. It raises an error of its own for a longer one.
LONGEST = 254


def stop_unless(condition: Tensor, message: str) -> None:
    """Let the device stop the program if `condition` is False. A long message is cut: it ends with "...".

    A device for which torch has no such operation is waited for.
    """
    try:
        torch._assert_async(condition, shortened(message))
    except NotImplementedError:
        if not bool(condition):
            raise RuntimeError(message) from None


def shortened(message: str) -> str:
    """The message, as long as a device takes it."""
    content = message.encode()
    if len(content) <= LONGEST:
        return message
    return content[: LONGEST - 3].decode(errors="ignore") + "..."
