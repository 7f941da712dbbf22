"""Check that the packages which a command needs are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from ..errors import AttentionDropError


class MissingExtraError(AttentionDropError):
    """Packages are missing that a command needs. The message is printed after "attentiondrop COMMAND"."""


def require(modules: Sequence[str], extra: str) -> None:
    """Raise if packages are not installed. Called before a command loads anything large."""
    missing = [module for module in modules if not _installed(module)]
    if missing:
        names = ", ".join({"sklearn": "scikit-learn"}.get(module, module) for module in missing)
        raise MissingExtraError(f'needs {names}; install it with: pip install "attentiondrop[{extra}]"')


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
