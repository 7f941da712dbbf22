"""Check that the packages which a command needs are installed."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import AttentionDropError
from ..experiments.tasks.optional_packages import is_installed


class MissingExtraError(AttentionDropError):
    """Packages are missing that a command needs. The message is printed after "attentiondrop COMMAND"."""


def require(modules: Sequence[str], extra: str) -> None:
    """Raise if packages are not installed. Called before a command loads anything large."""
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        names = ", ".join({"sklearn": "scikit-learn"}.get(module, module) for module in missing)
        raise MissingExtraError(f'needs {names}; install it with: pip install "attentiondrop[{extra}]"')
