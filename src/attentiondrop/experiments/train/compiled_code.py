"""torch.compile in a process that trains one model after the other."""

from __future__ import annotations

import torch

#: How many variants of a model one process keeps: methods and shapes. Seeds and rates share one.
_VARIANTS = 64


def share_compiled_code() -> None:
    """Let the runs of a process share compiled code, as many kinds of them as a study has.

    torch compiles a function 8 times at most, and then runs it uncompiled, after a warning. That limit is meant for
    functions that change all the time. In a worker, run after run is another method on the same function.
    """
    config = torch._dynamo.config  # loads the compiler, so this is not done where nothing is compiled
    config.recompile_limit = max(config.recompile_limit, _VARIANTS)
