"""What a method costs, where nobody has measured it."""

from __future__ import annotations

import math

from .parse import Method


def passes(method: Method) -> float:
    """Forward and backward passes of a whole training with a method, over those of `none`.

    >>> from .parse import read_method
    >>> [passes(read_method(text)) for text in ("hard", "longer(times=2)", "hard+consistency", "tailhard(share=0.5)")]
    [1.0, 2.0, 2.0, 1.5]
    >>> round(passes(read_method("emateacher")), 2)  # the teacher has no backward pass
    1.33
    """
    views = 1 if method.consistency is None else method.consistency.views
    # The views part at the first attention that anything is attached to. What comes before it runs once.
    share = max((share for _, share in method.attached_parts), default=1.0)
    more = 4 / 3 if any(part.name == "emateacher" for part in method.comparators) else 1.0
    times: float = math.prod(getattr(part, "times", 1) for part in method.comparators)
    return times * more * (1 + (views - 1) * share)
