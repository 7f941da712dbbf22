"""transformers: the attention implementation `"attentiondrop"`, and `ConsistencyTrainer`.

`attentiondrop.torch.attach` uses the attention implementation by itself. A model that is loaded with
`attn_implementation="attentiondrop"` (after importing this module) uses it everywhere: modules without a site then
attend as with "sdpa".

`ScheduleCallback` sets the progress of schedules from a `Trainer`.
"""

from __future__ import annotations

from typing import Any

from ..torch.attach.transformers_attention import attention_forward
from ..torch.attach.transformers_names import NAME

__all__ = ["NAME", "attention_forward"]


def __getattr__(name: str) -> Any:
    # The trainer takes seconds to import.
    if name == "ScheduleCallback":
        from .schedule_callback import ScheduleCallback

        return ScheduleCallback
    if name == "ConsistencyTrainer":
        from .consistency_trainer import ConsistencyTrainer

        return ConsistencyTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
