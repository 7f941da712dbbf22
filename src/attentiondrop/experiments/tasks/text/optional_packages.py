"""Packages that only some tasks need. They are imported when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from ....errors import AttentionDropError

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
    attentiondrop.experiments.tasks.text.optional_packages.MissingPackageError: this task needs no_such_package; \
install it with: pip install "attentiondrop[sequences]"
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # the package is there, and something that it needs is missing
        raise MissingPackageError(
            f'this task needs {package}; install it with: pip install "attentiondrop[{EXTRA}]"'
        ) from error
