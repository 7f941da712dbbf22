"""A site: one attention module whose class was exchanged for a generated subclass.

Exchanging the class, rather than patching functions or wrapping modules, is what survives: names, parameters and
`state_dict` keys stay, `copy.deepcopy` (an EMA) and pickling carry the site along, activation checkpointing enters it
again when it recomputes, and `torch.compile` guards on the class, so attaching and removing later is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from ...specs import Spec
from ..draws import Driven
from ..driving import controllers_of, driven_at
from ..monitoring import Monitor

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
    #: Who stacked them (`attentiondrop.torch.stack.Stack`), the last one that was entered at the end.
    stacks: tuple[Any, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: those of a model that runs right now are not in the middle of anything."""
        return {**self.__dict__, "views": 1, "stacks": ()}

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
        self.monitor = Monitor(rows, samples, () if self.monitor is None else self.monitor.controllers)

    def unwatch(self) -> None:
        """Measure no more than what rates that adapt need."""
        controllers = () if self.monitor is None else self.monitor.controllers
        self.monitor = Monitor(controllers=controllers) if controllers else None


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
    def reduce(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
        # A generated class cannot be found by name, its base can.
        return rebuild, (base, kind), self.__getstate__()

    members = {
        **KINDS[kind].members(base),
        "__reduce_ex__": reduce,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_attentiondrop_base": base,
    }
    return type(base.__name__, (base,), members)


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
    module.__class__ = regularised_class(type(module), site.kind)


def uninstall(module: nn.Module) -> None:
    """Give `module` its own class back."""
    module.__class__ = vars(type(module))["_attentiondrop_base"]
    del module.__dict__[ATTRIBUTE]
