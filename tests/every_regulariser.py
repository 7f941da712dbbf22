"""Every regulariser that is registered, with settings that show its effect: tests find a new one by themselves."""

from __future__ import annotations

import warnings

import attentiondrop as ad
from attentiondrop.specs import REGISTRY, Spec


def examples() -> list[Spec]:
    """The defaults of each regulariser, and what it names as good examples of itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ad.AttentionDropWarning)
        leaves = [cls for cls in REGISTRY.values() if cls.level not in ("container", "model")]
        found = [spec for cls in leaves for spec in (cls(), *map(ad.parse, cls.shown))]
    return list(dict.fromkeys(found))
