"""The numbers of a spec that may change during training, in one variable that a compiled step reads.

A new rate is assigned to the variable, so nothing is traced or compiled again, on any backend.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from ..adaptive import EntropyTarget, Learnable
from ..attaching import check_over_training
from ..errors import AttachError, bad_argument
from ..schedules import PerHead
from ..specs import Compose, HardMasking, HeadMask, OneOf, Spec

#: The fields that are rates. A change of the others (k, width, fill, ...) needs another computation.
FIELDS = ("p", "sigma", "sigma_min", "sigma_max", "weight")


def rate_fields(leaf: Spec) -> list[str]:
    """The rates of one regulariser, in the order of its fields."""
    return [field.name for field in dataclasses.fields(leaf) if field.name in FIELDS]


def rate_values(spec: Spec) -> list[float]:
    """The rates of all regularisers in a spec, in order."""
    return [getattr(leaf, field) for leaf in spec.leaves() for field in rate_fields(leaf)]


def long_names(spec: Spec) -> list[str]:
    """The name of each rate with the name of its spec (`hard.p`), in the order of the values."""
    return [f"{leaf.name}.{field}" for leaf in spec.leaves() for field in rate_fields(leaf)]


def rate_names(spec: Spec) -> Iterator[str]:
    """The names of the rates of a spec: the field (`p`), and the name of the spec with the field (`hard.p`)."""
    for name in long_names(spec):
        yield name.split(".")[-1]
        yield name


def with_rates(spec: Spec, rates: Mapping[str, float]) -> Spec:
    """`spec` with other numbers; `"hard.p"` takes precedence over `"p"`. Bad numbers raise the errors of the spec.

    Schedules stay. (The specs that layers compute have none: theirs are evaluated.)

    >>> import attentiondrop as ad
    >>> print(with_rates(ad.parse("hard(p=0.1,k=5)+dropkey(p=0.1)"), {"hard.p": 0.3, "p": 0.2}))
    hard(p=0.3,k=5)+dropkey(p=0.2)
    """
    if isinstance(spec, Compose):
        return Compose([with_rates(part, rates) for part in spec.parts])
    if isinstance(spec, OneOf):
        return OneOf([with_rates(part, rates) for part in spec.parts], spec.weights)
    changed = {}
    for field in rate_fields(spec):
        if field in spec.scheduled():
            continue
        for name in (field, f"{spec.name}.{field}"):
            if name in rates:
                changed[field] = rates[name]
    return dataclasses.replace(spec, **changed) if changed else spec


def check_computable(spec: Spec) -> None:
    """Refuse what only `attentiondrop.torch` can compute."""
    for leaf in spec.leaves():
        if isinstance(leaf, HardMasking) and leaf.heads != "independent":
            raise bad_argument("heads", "'independent' in attentiondrop.keras", leaf.heads)
        if isinstance(leaf, HeadMask) and leaf.choice != "random":
            expected = "'random' in attentiondrop.keras, which does not measure the gradients of heads"
            raise bad_argument("choice", expected, leaf.choice)
        for field, schedule in leaf.scheduled().items():
            values = getattr(schedule, "values", ())
            if any(isinstance(entry, PerHead | EntropyTarget | Learnable) for entry in (schedule, *values)):
                expected = "a number or a schedule over training or layers in attentiondrop.keras"
                raise bad_argument(field, expected, str(schedule))


class Rates:
    """A spec and the variable that holds its rates.

    It has a `state` like a `keras.random.SeedGenerator`, and is stored in the layer's list of seed generators. So JAX
    passes the variable through a compiled step, but it is no weight, and weight files are those of the stock layer.
    """

    def __init__(self, spec: Spec, dtype: str = "float32", layer: int = 0, layers: int = 1) -> None:
        check_computable(spec)
        check_over_training(spec, layer, layers)
        #: The spec with its schedules, and the numbers of `set`; and which of how many layers it is for.
        self.template, self.layer, self.layers = spec, layer, layers
        self.spec = spec.at(0.0, layer, layers)
        values = np.array(rate_values(self.spec), dtype=dtype)
        self.state = keras.Variable(
            values, dtype=dtype, trainable=False, autocast=False, aggregation="none", name="attentiondrop_rates"
        )

    def number(self, name: str) -> Any:
        """One rate as a compiled step reads it, by its long name; of several the first."""
        return self.state[long_names(self.spec).index(name)]

    def check(self, rates: Mapping[str, float]) -> None:
        """Raise if `set` would, because of the numbers."""
        with_rates(self.template, rates)
        with_rates(self.spec, rates)

    def set(self, rates: Mapping[str, float]) -> None:
        """Change some numbers of the spec. Names that the spec does not have are ignored.

        A new number stays, also where the spec has schedules for other numbers. The new number of a schedule stays
        until the schedule is evaluated again.
        """
        template = with_rates(self.template, rates)
        self._assign(with_rates(self.spec, rates))
        self.template = template

    def set_progress(self, progress: float) -> None:
        """Evaluate the schedules of the spec, if it has any."""
        spec = self.at(progress)
        if spec is not None:
            self._assign(spec)

    def at(self, progress: float) -> Spec | None:
        """The spec with its schedules evaluated; None if it has none."""
        if not any(leaf.scheduled() for leaf in self.template.leaves()):
            return None
        return self.template.at(progress, self.layer, self.layers)

    def _assign(self, spec: Spec) -> None:
        if _is_in_a_jax_step(self.state):
            raise AttachError(
                "rates: expected the model that is in `fit`, received a model inside it: on JAX, `fit` would not see "
                "the change; use attentiondrop.keras.set_rates(outer_model, ...) or ScheduleCallback"
            )
        self.spec = spec
        self.state.assign(np.array(rate_values(self.spec), dtype=self.state.dtype))


def set_all_progress(model: Any, entries: Sequence[Rates], progress: float) -> None:
    """Evaluate the schedules of several specs in `model`. If a value does not fit, nothing is changed."""
    found = [(entry, entry.at(progress)) for entry in entries]
    take_back_jax_state(model)
    for entry, spec in found:
        if spec is not None:
            entry._assign(spec)


def set_all(model: Any, entries: Sequence[Rates], rates: Mapping[str, float]) -> None:
    """Change numbers of several specs in `model`. If a name or a number fits none or not all, nothing is changed."""
    if not isinstance(rates, Mapping):
        raise bad_argument("rates", 'a mapping from names of rates to numbers, such as {"p": 0.05}', rates)
    known = list(dict.fromkeys(name for entry in entries for name in rate_names(entry.spec)))
    for name in rates:
        if name not in known:
            expected = f"names among {', '.join(known)}" if known else "no names, since no spec here has a rate"
            raise bad_argument("rates", expected, name)
    for entry in entries:
        entry.check(rates)
    take_back_jax_state(model)
    for entry in entries:
        entry.set(rates)


def take_back_jax_state(model: Any) -> None:
    """Prepare a change of variables: on JAX, `fit` keeps their values elsewhere between the batches of an epoch.

    They are written back to the variables here. `fit` then reads the variables again before its next batch.
    """
    if keras.backend.backend() == "jax" and hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def _is_in_a_jax_step(variable: Any) -> bool:
    """Whether `fit` has taken the value out of the variable, and will overwrite what is assigned to it."""
    return keras.backend.backend() == "jax" and variable._value is None
