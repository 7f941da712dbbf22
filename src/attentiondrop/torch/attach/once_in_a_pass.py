"""Facts about tensors that all layers share, such as a mask: found once in a forward pass, and not in every layer.

On a GPU, reading a value waits for the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .sites import Site

Fact = TypeVar("Fact")


@dataclass
class _Known(Generic[Fact]):
    """What was found of some tensors, and the sites that have asked since."""

    others: list[weakref.ref[Tensor]]
    versions: list[int]
    fact: Fact
    asked: set[int] = field(default_factory=set)

    @property
    def is_alive(self) -> bool:
        """Whether all tensors still exist."""
        return all(ref() is not None for ref in self.others)

    def is_about(self, others: list[Tensor]) -> bool:
        """Whether these are the tensors beside the first one."""
        return len(self.others) == len(others) and all(ref() is x for ref, x in zip(self.others, others, strict=True))


class OnceInAPass(Generic[Fact]):
    """Remembers facts as long as the tensors live.

    A site asks once in a forward pass. If it asks again, there may be other values in the same memory: the fact is
    found anew then.
    """

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()

    def get(self, tensors: list[Tensor], site: Site, find: Callable[[], Fact]) -> Fact:
        """What `find` says of `tensors` (at least one), or said in this pass when another site asked."""
        if any(x.is_inference() for x in tensors):
            return find()  # nobody counts the changes of these
        first, *others = tensors
        versions = [x._version for x in tensors]
        all_known: list[_Known[Fact]] = self._known.get(first, [])
        known = next((each for each in all_known if each.is_about(others)), None)
        if known is None or known.versions != versions or id(site) in known.asked:
            fact = find()
            kept = [each for each in all_known if each is not known and each.is_alive]
            known = _Known([weakref.ref(x) for x in others], versions, fact)
            self._known[first] = [*kept, known]
        known.asked.add(id(site))
        return known.fact
