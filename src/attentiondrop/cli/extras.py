"""What a command needs beyond the base install."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from ..errors import AttentionDropError


class MissingExtraError(AttentionDropError):
    """Packages that a command needs and that are not installed; the message continues "attentiondrop COMMAND"."""


def require(modules: Sequence[str], extra: str) -> None:
    """Refuse, before anything heavy is loaded, to run a command whose packages are not installed."""
    missing = [module for module in modules if not _installed(module)]
    if missing:
        names = ", ".join({"sklearn": "scikit-learn"}.get(module, module) for module in missing)
        raise MissingExtraError(f'needs {names}; install it with: pip install "attentiondrop[{extra}]"')


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
