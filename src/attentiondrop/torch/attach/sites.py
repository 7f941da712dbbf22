"""A site: one attention module whose class was exchanged for a generated subclass.

The class is exchanged, instead of patching functions or wrapping modules, for these reasons: names, parameters and
`state_dict` keys stay; `copy.deepcopy` (for an EMA) and pickling copy the site, too; activation checkpointing runs it
again when it recomputes; and `torch.compile` guards on the class, so a compiled model sees a later attach or remove.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from ...specs import BlurSmoothing, Spec
from ..call.leaves import Bounds, Driven, needs_calls_for_groups
from ..rates.monitoring import Monitor
from ..rates.scheduled import controllers_of, driven_at
from .exchange_class import exchanged, own_class
from .library_masks import with_hidden_keys
from .reminders import Reminders, reminders_of
from .scripting import check_scriptable, passing_for

#: The key of the site in its module's `__dict__`. It is neither parameter nor buffer, so it is not in the `state_dict`.
ATTRIBUTE = "_attentiondrop_site"


@dataclass
class Site:
    """What one attention module does in training. Copies of the module get copies of it."""

    name: str
    spec: Spec
    backend: str
    #: How its attention is reached: a name in `WAYS`.
    way: str
    #: "encoder" or "decoder" for self-attention, "cross", or None if that is unknown; see `attention_kinds`.
    kind: str | None = None
    #: What this way of reaching needs to remember, for example the original configuration.
    extra: dict[str, Any] = field(default_factory=dict)
    #: The spec with the rates of its schedules in tensors, if it has any.
    driven: Driven | None = None
    #: The progress at which the schedules were evaluated.
    progress: float = 0.0
    #: Whether somebody said so, with `set_progress`.
    told: bool = False
    #: Its number among the attached layers, and their number.
    layer: tuple[int, int] = (0, 1)
    #: Measures what happens to the attention, for `watch` and for adaptive rates.
    monitor: Monitor | None = None
    #: How many views are stacked in the batch that the module gets, while `attentiondrop.torch.views` runs.
    views: int = 1
    #: The stacks that are entered now (`Stack` of `attentiondrop.torch.consistency`), the latest at the end.
    stacks: tuple[Any, ...] = ()
    #: Sites with the same rank make the same draws; None: every process makes its own draws.
    rank: int | None = None
    #: Whether the forward of the module makes all calls of its attention itself (`own_calls`); None: nobody has looked.
    own_calls: bool | None = None
    #: Whether the model's own dropout of attention weights is on, as in training; a measurement may do without it.
    keeps_dropout: bool = True
    #: What the spec needs from the training loop, and may not get; None if it needs nothing.
    reminders: Reminders | None = field(init=False, default=None, compare=False)
    #: Whether the spec draws anything.
    draws: bool = field(init=False, default=True, compare=False)
    #: Whether groups of a batch that share no draw need a call for each.
    splits_groups: bool = field(init=False, default=False, compare=False)

    def __post_init__(self) -> None:
        self._look_at_spec()

    def __getstate__(self) -> dict[str, Any]:
        """The state for a pickle: without running passes, and without what another process may know otherwise."""
        return {**self.__dict__, "views": 1, "stacks": (), "rank": None, "own_calls": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In pickles of older versions, `kind` is what `way` is now, and bounds are a dict."""
        self.__dict__.update(state if "way" in state else {**state, "way": state["kind"], "kind": None})
        bounds: Any = None if self.driven is None else self.driven.bounds
        if self.driven is not None and not isinstance(bounds, Bounds):
            self.driven = self.driven._replace(bounds=Bounds(bounds))

    def __deepcopy__(self, memo: dict[int, Any]) -> Site:
        """A copy has no running passes either, but keeps the rank."""
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy({**self.__getstate__(), "rank": self.rank}, memo))
        return twin

    @property
    def drop(self) -> Spec | Driven:
        """What to pass to `perturbed_attention`."""
        # Compiled code must not look at what is left: it would be compiled again when that changes.
        waiting = self.reminders
        if waiting is not None and not torch.compiler.is_compiling() and waiting.left and torch.is_grad_enabled():
            waiting.count(self)
        return self.spec if self.driven is None else self.driven

    def set_progress(self, progress: float, layer: int, layers: int, module: nn.Module) -> None:
        """Evaluate the schedules for this layer, in the same tensors, so that a compiled model stays valid."""
        self.progress, self.layer = progress, (layer, layers)
        first = self.driven is None
        self.driven = driven_at(self.spec, progress, layer, layers, module, self.driven)
        if first and (controllers := controllers_of(self.spec, self.driven)):
            self.monitor = Monitor() if self.monitor is None else self.monitor
            self.monitor.controllers = controllers

    def respec(self, spec: Spec) -> None:
        """Replace the spec; `set_progress` must be called next. If the site is watched, the sums start at zero."""
        before = self.monitor
        self.monitor = Monitor(before.rows, before.samples, watched=True) if before and before.watched else None
        self.spec, self.driven = spec, None
        self._look_at_spec()

    def _look_at_spec(self) -> None:
        self.reminders = reminders_of(self.spec)
        identity = (isinstance(leaf, BlurSmoothing) and leaf.width == 1 for leaf in self.spec.leaves())
        self.draws = not all(identity)
        self.splits_groups = needs_calls_for_groups(self.spec)

    @property
    def adapts(self) -> bool:
        """Whether something changes with each call: adaptive rates, or the importance of heads."""
        has_states = self.driven is not None and len(self.driven.states) > 0
        return has_states or (self.monitor is not None and len(self.monitor.controllers) > 0)

    def done(self, topic: str) -> None:
        """Somebody has done what the spec needs: `topic` is one of `reminders.PATIENCE`."""
        if self.reminders is not None:
            self.reminders.done(topic)

    def freeze(self) -> None:
        """Keep adaptive rates and the importance of heads as they are, whatever the module computes from now on."""
        self.monitor = None
        self.reminders = None  # it is measured now, not trained
        for importance in ({} if self.driven is None else self.driven.states).values():
            importance.fixed = True

    def watch(self, rows: int, samples: int) -> None:
        """Start to measure, with sums of zero."""
        before = Monitor() if self.monitor is None else self.monitor
        self.monitor = Monitor(rows, samples, before.controllers, before.recent, watched=True)

    def unwatch(self) -> None:
        """Stop to measure, except for what adaptive rates need."""
        before = self.monitor
        adapts = before is not None and before.controllers
        self.monitor = Monitor(controllers=before.controllers, recent=before.recent) if before and adapts else None


def _nothing(module: nn.Module) -> dict[str, Any]:
    return {}


class Way(NamedTuple):
    """A way of reaching the attention inside a module."""

    #: Given the base class, the members of the generated subclass.
    members: Callable[[type[nn.Module]], dict[str, Any]]
    #: Given the module, what its site must remember (`Site.extra`).
    remember: Callable[[nn.Module], dict[str, Any]] = _nothing


#: Name -> way. The module of each way adds its entry; a pickle stores only the name.
WAYS: dict[str, Way] = {}


_classes: dict[tuple[type[nn.Module], str], type[nn.Module]] = {}


def regularised_class(base: type[nn.Module], way: str) -> type[nn.Module]:
    """The subclass of `base` that perturbs its attention in training; always the same one for the same base.

    It has the name of the base, since some code looks at class names (wrapping policies, output recorders).
    """
    if (base, way) not in _classes:
        _classes[base, way] = _generate(base, way)
    return _classes[base, way]


def _generate(base: type[nn.Module], way: str) -> type[nn.Module]:
    def reduce(self: nn.Module, protocol: Any) -> Any:
        if type(self) is not generated:
            return base.__reduce_ex__(self, protocol)  # a subclass that torch generated: pickling it is torch's task
        # pickle cannot find a generated class by name, but it can find its base.
        return rebuild, (base, way), self.__getstate__()

    own = with_hidden_keys(base, WAYS[way].members(base))
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


def rebuild(base: type[nn.Module], way: str) -> nn.Module:
    """An empty instance for `copy` and `pickle` to fill."""
    cls = regularised_class(base, way)
    return cls.__new__(cls)


def site_of(module: nn.Module) -> Site | None:
    """The site of this module (not of its submodules), or None."""
    site: Site | None = module.__dict__.get(ATTRIBUTE)
    return site


def install(module: nn.Module, site: Site) -> None:
    """Exchange the class of `module`."""
    site.extra.update(WAYS[site.way].remember(module))
    module.__dict__[ATTRIBUTE] = site
    own = own_class(type(module))
    module.__class__ = exchanged(type(module), own, regularised_class(own, site.way))


def uninstall(module: nn.Module) -> None:
    """Give `module` its own class back."""
    cls = type(module)
    generated = next(ancestor for ancestor in cls.__mro__ if "_attentiondrop_base" in vars(ancestor))
    module.__class__ = exchanged(cls, generated, vars(generated)["_attentiondrop_base"])
    del module.__dict__[ATTRIBUTE]
