"""All tasks, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..files.typed_settings import unknown
from .classification.task import Classification
from .interface import Task
from .language.language_task import LanguageModelling
from .text_classification.text_classification_task import TextClassification
from .translation.translation_task import TranslationTask

#: The task of recipes and records that name none. Older versions had no other task.
DEFAULT = Classification.name
TASKS: dict[str, Task] = {
    task.name: task for task in (Classification(), TextClassification(), TranslationTask(), LanguageModelling())
}


def find_task(name: Any) -> Task:
    """The task of that name. The error for an unknown name lists all tasks.

    >>> find_task("classification").metrics.primary.label
    'accuracy'
    """
    if not isinstance(name, str) or name not in TASKS:
        raise unknown(f"task {name!r}", str(name), TASKS, "task")
    return TASKS[name]


def task_of(recipe: Mapping[str, Any]) -> Task:
    """The task of a recipe in plain types, as it is stored."""
    return find_task(recipe.get("task", DEFAULT))
