"""Specs and comparators that are methods of their own with certain fields, each with the settings that tuning tries.

The grid of a spec varies its plain rates. A schedule, or another kind of the same spec, needs settings of its own.
"""

from __future__ import annotations

from typing import Any

#: Our own regularisers: the other fill, schedules, adaptive rates.
OURS: dict[str, list[dict[str, Any]]] = {
    "hard(fill=-inf)": [{"p": p, "k": k} for p, k in ((0.1, 5), (0.05, 5), (0.2, 5), (0.5, 5), (0.2, 3), (0.2, 10))],
    "hard(p=linear(start=0.0,end=0.2))": [
        {"p": f"linear(start=0.0,end={end})", "k": k}
        for end, k in ((0.2, 5), (0.1, 5), (0.4, 5), (0.5, 5), (0.2, 3), (0.2, 10))
    ],
    "blur(sigma_max=linear(start=0.0,end=1.0))": [
        {"sigma_max": f"linear(start=0.0,end={end})"} for end in (1.0, 0.3, 0.5, 2.0, 3.0, 4.0)
    ],
    "hard(p=entropy(target=0.9))": [{"p": f"entropy(target={target})"} for target in (0.9, 0.5, 0.6, 0.7, 0.8, 0.95)],
}
#: Of others: a rate that falls with depth (DropKey), and one that falls and rises during training (DropHead).
ATTENTION: dict[str, list[dict[str, Any]]] = {
    "dropkey(by=column)": [{"p": p} for p in (0.3, 0.05, 0.1, 0.2, 0.4, 0.5)],
    "dropattention(by=column)": [{"p": p} for p in (0.1, 0.05, 0.2, 0.3, 0.4, 0.5)],
    "dropkey(p=depth(first=0.3,last=0.0))": [
        {"p": f"depth(first={first},last=0.0)"} for first in (0.3, 0.05, 0.1, 0.2, 0.4, 0.5)
    ],
    "drophead(p=v_shape(high=0.2))": [{"p": f"v_shape(high={high})"} for high in (0.2, 0.05, 0.1, 0.3, 0.4, 0.5)],
}
#: A control: the two passes of R-Drop without their consistency.
CONTROLS: dict[str, list[dict[str, Any]]] = {
    "r-drop(weight=0.0)": [{"weight": 0.0, "p": p} for p in (0.1, 0.05, 0.2, 0.3, 0.4, 0.5)],
}
VARIANTS = OURS | ATTENTION | CONTROLS
