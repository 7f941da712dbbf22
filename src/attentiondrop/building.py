"""Build specs from a name and fields, for texts, dictionaries and configuration files."""

from __future__ import annotations

import dataclasses
from typing import Any

from . import schedules
from .errors import ArgumentError, bad_argument, did_you_mean
from .specs import REGISTRY, Compose, OneOf, Spec
from .unknown_names import explain_unknown


def from_dict(data: dict[str, Any]) -> Spec:
    """The spec that `Spec.to_dict` described.

    >>> print(from_dict({"name": "hard", "p": 0.2}))
    hard(p=0.2,k=5)
    """
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise bad_argument("data", "a dict with a 'name'", data)
    fields = dict(data)
    cls = spec_class(fields.pop("name"))
    if "parts" in fields and issubclass(cls, (Compose, OneOf)):
        if not isinstance(fields["parts"], (list, tuple)):
            raise bad_argument("parts", "a list of dicts", fields["parts"])
        fields["parts"] = [from_dict(part) for part in fields["parts"]]
    for name, value in fields.items():
        if isinstance(value, dict):
            fields[name] = schedules.from_dict(value)
    return build(cls, fields)


def spec_class(name: str) -> type[Spec]:
    """The class registered under `name`, or an error that lists the known names or says what to use instead."""
    try:
        return REGISTRY[name]
    except KeyError:
        raise ArgumentError(explain_unknown(name, REGISTRY)) from None


def build(cls: type[Spec], fields: dict[str, Any]) -> Spec:
    """Construct `cls` from named fields; an unknown field is an error that lists the known ones."""
    known = [field.name for field in dataclasses.fields(cls)]
    for field in fields:
        if field not in known:
            # "sigma" is as close to sigma_min as to sigma_max: the field that people set comes first.
            hint = did_you_mean(field, [name for name in cls.headline if name.startswith(field)] or known)
            raise ArgumentError(f"{cls.name}: unknown field {field!r}, expected one of {', '.join(known)}{hint}")
    missing = [name for name in known if name == "parts" and name not in fields]
    if missing:
        raise ArgumentError(f"{cls.name}: field 'parts' is missing")
    return cls(**fields)
