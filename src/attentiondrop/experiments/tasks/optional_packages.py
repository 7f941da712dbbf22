"""Packages that only some tasks need. They are imported when they are used, and looked for before the first run."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from ...errors import AttentionDropError

#: The extra of this package that installs them.
EXTRA = "sequences"


class MissingPackageError(AttentionDropError):
    """A package is missing that a task needs."""


def imported(name: str) -> Any:
    """The module of that name. If its package is not installed, the error says how to install it.

    >>> imported("json").loads("[1]")
    [1]
    >>> imported("no_such_package")
    Traceback (most recent call last):
    attentiondrop.experiments.tasks.optional_packages.MissingPackageError: this task needs no_such_package; \
install it with: pip install "attentiondrop[sequences]"
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # the package is there, and something that it needs is missing
        raise _missing([package], EXTRA) from error


def check_packages(names: Sequence[str], extra: str) -> None:
    """Raise if a package is not installed. Nothing is imported."""
    if missing := [name for name in names if not is_installed(name)]:
        raise _missing(missing, extra)


def is_installed(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _missing(packages: Sequence[str], extra: str) -> MissingPackageError:
    names = ", ".join(packages)
    return MissingPackageError(f'this task needs {names}; install it with: pip install "attentiondrop[{extra}]"')
