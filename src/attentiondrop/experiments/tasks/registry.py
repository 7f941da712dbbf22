"""The tasks there are, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..files.typed_settings import unknown
from .classification.task import Classification
from .interface import Task

#: Recipes and records that name no task are of this one: older versions had no other.
DEFAULT = Classification.name
TASKS: dict[str, Task] = {task.name: task for task in (Classification(),)}


def find_task(name: Any) -> Task:
    """The task of that name, or an error that lists all of them.

    >>> find_task("classification").metrics.primary.label
    'accuracy'
    """
    if not isinstance(name, str) or name not in TASKS:
        raise unknown(f"task {name!r}", str(name), TASKS, "task")
    return TASKS[name]


def task_of(recipe: Mapping[str, Any]) -> Task:
    """The task of a recipe in plain types, as it lies on disk."""
    return find_task(recipe.get("task", DEFAULT))
