"""A site: one attention module whose class was exchanged for a generated subclass.

Exchanging the class, rather than patching functions or wrapping modules, is what survives: names, parameters and
`state_dict` keys stay, `copy.deepcopy` (an EMA) and pickling carry the site along, activation checkpointing enters it
again when it recomputes, and `torch.compile` guards on the class, so attaching and removing later is seen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from ...specs import Spec
from ..call.leaves import Driven
from ..rates.monitoring import Monitor
from ..rates.scheduled import controllers_of, driven_at
from .classes import exchanged, own_class
from .scripting import check_scriptable, passing_for

#: Where a site lives in its module's `__dict__`: neither parameter nor buffer, so no `state_dict` shows it.
ATTRIBUTE = "_attentiondrop_site"


@dataclass
class Site:
    """What one attention module does in training. Copies of the module get copies of it."""

    name: str
    spec: Spec
    backend: str
    kind: str
    #: What the kind of site needs to remember, for example the configuration it stands in for.
    extra: dict[str, Any] = field(default_factory=dict)
    #: The spec with the rates of its schedules in tensors, if it has any.
    driven: Driven | None = None
    #: Where the schedules stand.
    progress: float = 0.0
    #: Measures what happens to the attention, if somebody asked for it.
    monitor: Monitor | None = None
    #: How many views of one batch are stacked in what the module attends over, while `attentiondrop.torch.views` runs.
    views: int = 1
    #: Who stacked them (`Stack` of `attentiondrop.torch.consistency`); the last one that was entered is at the end.
    stacks: tuple[Any, ...] = ()
    #: The data-parallel rank that the site draws for; None is the rank of the process, each with draws of its own.
    rank: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For pickles: nothing is under way in them, and whoever loads one is perhaps another rank."""
        return {**self.__dict__, "views": 1, "stacks": (), "rank": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Site:
        """Nothing is under way in a copy either, but it draws for the same rank."""
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy({**self.__getstate__(), "rank": self.rank}, memo))
        return twin

    @property
    def drop(self) -> Spec | Driven:
        """What attention takes."""
        return self.spec if self.driven is None else self.driven

    def set_progress(self, progress: float, layer: int, layers: int, module: nn.Module) -> None:
        """Evaluate the schedules for this layer; its tensors stay the same ones, so a compiled model stays valid."""
        self.progress = progress
        first = self.driven is None
        self.driven = driven_at(self.spec, progress, layer, layers, module, self.driven)
        if first and (controllers := controllers_of(self.spec, self.driven)):
            self.monitor = Monitor(controllers=controllers)

    def respec(self, spec: Spec) -> None:
        """Do something else from now on; `set_progress` must follow."""
        self.spec, self.driven, self.monitor = spec, None, None

    def watch(self, rows: int, samples: int) -> None:
        """Measure, from scratch."""
        before = Monitor() if self.monitor is None else self.monitor
        self.monitor = Monitor(rows, samples, before.controllers, before.recent)

    def unwatch(self) -> None:
        """Measure no more than what rates that adapt need."""
        before = self.monitor
        adapts = before is not None and before.controllers
        self.monitor = Monitor(controllers=before.controllers, recent=before.recent) if before and adapts else None


def _nothing(module: nn.Module) -> dict[str, Any]:
    return {}


class Kind(NamedTuple):
    """A way of reaching attention."""

    #: Given the class to extend, what the generated subclass has of its own.
    members: Callable[[type[nn.Module]], dict[str, Any]]
    #: Given the module, what its site must remember of it.
    remember: Callable[[nn.Module], dict[str, Any]] = _nothing


#: Name -> kind. Each module of this package adds its own; pickles find them here.
KINDS: dict[str, Kind] = {}


_classes: dict[tuple[type[nn.Module], str], type[nn.Module]] = {}


def regularised_class(base: type[nn.Module], kind: str) -> type[nn.Module]:
    """The subclass of `base` that perturbs its attention in training; always the same one for the same base.

    It keeps the name of the base: code that looks at class names (wrapping policies, output recorders) sees no change.
    """
    if (base, kind) not in _classes:
        _classes[base, kind] = _generate(base, kind)
    return _classes[base, kind]


def _generate(base: type[nn.Module], kind: str) -> type[nn.Module]:
    def reduce(self: nn.Module, protocol: Any) -> Any:
        if type(self) is not generated:
            return base.__reduce_ex__(self, protocol)  # torch put a class on top, and knows how, or that it cannot
        # A generated class cannot be found by name, its base can.
        return rebuild, (base, kind), self.__getstate__()

    own = KINDS[kind].members(base)
    if "forward" in own:
        own["forward"] = passing_for(base.forward, own["forward"])
    properties = [name for name, member in own.items() if isinstance(member, property)]
    members = {
        **own,
        "__reduce_ex__": reduce,
        "__prepare_scriptable__": check_scriptable,
        "__jit_unused_properties__": [*getattr(base, "__jit_unused_properties__", ()), *properties],
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_attentiondrop_base": base,
    }
    generated = type(base.__name__, (base,), members)
    return generated


def rebuild(base: type[nn.Module], kind: str) -> nn.Module:
    """An empty instance for `copy` and `pickle` to fill."""
    cls = regularised_class(base, kind)
    return cls.__new__(cls)


def site_of(module: nn.Module) -> Site | None:
    """The site on this very module, if it has one."""
    site: Site | None = module.__dict__.get(ATTRIBUTE)
    return site


def install(module: nn.Module, site: Site) -> None:
    """Exchange the class of `module`."""
    site.extra.update(KINDS[site.kind].remember(module))
    module.__dict__[ATTRIBUTE] = site
    own = own_class(type(module))
    module.__class__ = exchanged(type(module), own, regularised_class(own, site.kind))


def uninstall(module: nn.Module) -> None:
    """Give `module` its own class back."""
    cls = type(module)
    generated = next(ancestor for ancestor in cls.__mro__ if "_attentiondrop_base" in vars(ancestor))
    module.__class__ = exchanged(cls, generated, vars(generated)["_attentiondrop_base"])
    del module.__dict__[ATTRIBUTE]
