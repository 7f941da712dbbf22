"""Exchange the class of a module, below the subclasses that torch itself has generated for it.

Like `attach`, `fully_shard` and `register_parametrization` replace the class of a module by a generated subclass, and
any of them may be undone first. torch undoes its own by going back to the base class. So the class of a site goes below
torch's classes, as their base, and is removed from there.
"""

from __future__ import annotations

from typing import Any

from torch import nn

Class = type[nn.Module]


def own_class(cls: Class) -> Class:
    """The class below those that `fully_shard`, `replicate` and parametrizations have generated."""
    while (beneath := _beneath(cls)) is not None:
        cls = beneath
    return cls


def _beneath(cls: Class) -> Class | None:
    bases: tuple[Class, ...] = cls.__bases__
    if _is_parametrization(cls):
        return bases[0]
    # The bases are FSDPModule, ReplicateModule or DDP, and the class of the module.
    if len(bases) == 2 and bases[0].__module__.startswith("torch.distributed."):
        return bases[1]
    return None


def _is_parametrization(cls: type) -> bool:
    generated = cls.__module__ == "torch.nn.utils.parametrize" and cls.__name__.startswith("Parametrized")
    return generated and len(cls.__bases__) == 1


_exchanged: dict[tuple[type, type, type], type] = {}


def exchanged(cls: Any, old: type, new: type) -> Any:
    """A copy of `cls` with `new` in place of its ancestor `old`; exchanging them back gives `cls` itself again."""
    if cls is old:
        return new
    if (cls, old, new) in _exchanged:
        return _exchanged[cls, old, new]
    bases = tuple(exchanged(base, old, new) if issubclass(base, old) else base for base in cls.__bases__)
    members = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    made = type(cls)(cls.__name__, bases, members)
    # Not stored for parametrizations: each has a class for one module only, and changes the properties of that class.
    if not any(_is_parametrization(ancestor) for ancestor in cls.__mro__):
        _exchanged[cls, old, new], _exchanged[made, new, old] = made, cls
    return made
