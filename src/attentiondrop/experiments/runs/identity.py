"""When two runs of one method and seed are the same: which settings decide the weights, and which only the scores.

Settings are plain mappings here, as they are stored. So records of older versions can be compared too, and a report
needs no framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..files.typed_settings import merged
from ..tasks.registry import DEFAULT, TASKS, task_of
from .kinds import FINAL, TUNING

#: Settings about places and speed, which do not change results. (A captured step computes the same up
#: to rounding. Whether a run was captured, which `auto` does not tell, is in its result.)
_WITHOUT_EFFECT = (
    ("data", "root"),
    ("data", "download"),
    ("data", "workers"),
    ("model", "checkpoint_activations"),
    ("training", "capture"),
    ("training", "save_every"),
)
#: Settings that older versions did not have, with the value that does what they did. With it, they are not recorded:
#: a run of an older version is the same run.
_ADDED = (
    ("training", "schedule", "cosine"),
    ("training", "betas", [0.9, 0.999]),
    ("training", "average_last", 1),
    ("training", "kinds", None),
    ("training", "own_kernels", False),
    ("training", "compile_loss", None),
    ("training", "validate_every", 1),
    ("model", "checkpoint", None),
    ("model", "checkpoint_sha256", None),
    ("data", "erase", 0.0),
    ("data", "mix", 0.0),
    ("data", "resplit", False),
    ("data", "mirror", False),
    ("evaluation", "pgd_choice", "first"),
)
_MEANT = {f"{section}.{name}": usual for section, name, usual in _ADDED}
_TRAINED = ("task", "data", "model", "training", "measure")
_EVALUATION = "evaluation"
#: This setting of training only decides which of the stored weights are scored.
_SELECT = "select"

Recipe = Mapping[str, Any]
Checksums = Mapping[str, str]


def recorded(recipe: Recipe) -> dict[str, Any]:
    """The part of a recipe that a run records."""
    found = {key: _copy(recipe[key]) for key in (*_TRAINED, _EVALUATION) if key in recipe}
    for section, name in _WITHOUT_EFFECT:
        if isinstance(found.get(section), dict):
            found[section].pop(name, None)
    for section, name, usual in _ADDED:
        if isinstance(found.get(section), dict) and found[section].get(name) == usual:
            found[section].pop(name, None)
    attack = found.get(_EVALUATION)
    if isinstance(attack, dict) and not attack.get("pgd_epsilons"):
        attack.pop("pgd_choice", None)  # older versions did not have it, and nothing is attacked
    return found


def recipe_of(kind: str, recipe: Recipe) -> dict[str, Any]:
    """The recipe that runs of a kind use, made from the recipe of their study.

    Only final runs keep the settings that need the test part. Tuning trials have their own epochs and no probes.
    """
    if kind == FINAL:
        return dict(recipe)
    changes: dict[str, Any] = {_EVALUATION: task_of(recipe).evaluation_settings.WITHOUT_TEST}
    if kind == TUNING:
        epochs = _section(recipe, "tuning").get("epochs")
        changes |= {"measure": {"probes": 0}} | ({} if epochs is None else {"training": {"epochs": epochs}})
    return merged(recipe, {key: change for key, change in changes.items() if key in recipe})


def trained_from(recipe: Recipe, checksums: Checksums, kind: str) -> dict[str, Any]:
    """Everything that decides the weights of a run. If any of it changes, the run must be trained again."""
    found = recorded(recipe)
    # Tuning and ablation keep no weights that could be scored again.
    task = TASKS.get(recipe.get("task", DEFAULT))
    if kind == FINAL or task is None or not task.evaluation_settings.CHANGE_VALIDATION:
        found.pop(_EVALUATION, None)
    if kind == FINAL and isinstance(found.get("training"), dict):
        found["training"].pop(_SELECT, None)  # the best and the last weights are both kept
    return found | _data(checksums, ("train", "validation"))


def scored_from(recipe: Recipe, checksums: Checksums, kind: str) -> dict[str, Any]:
    """Everything else that decides the scores of a run. If any of it changes, the stored weights are scored again.

    Empty for runs that are not final: they are scored only on the validation part, where evaluation settings change a
    score only if `CHANGE_VALIDATION` says so; then they are a part of `trained_from`.
    """
    if kind != FINAL:
        return {}
    found = {key: value for key, value in recorded(recipe).items() if key == _EVALUATION}
    select = _section(recipe, "training").get(_SELECT)
    return found | ({} if select is None else {"training": {_SELECT: select}}) | _data(checksums, ("test",))


def differences(then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """How `now` differs from `then`, in words.

    A top-level entry that only one of them has is ignored. Within a section, a missing value counts as what older
    versions did, or else as None.

    >>> differences({"training": {"epochs": 3, "ema": None}}, {"training": {"epochs": 8}})
    ['training.epochs 3 -> 8']
    >>> then = {"arguments": None, "name": "a"}
    >>> differences({"model": then}, {"model": {"arguments": {"depth": 2}, "name": "b" * 40}})
    ["model.arguments None -> {'depth': 2}", 'model.name differs']
    """
    found: list[str] = []
    keys = now.keys() | then.keys() if prefix else now.keys() & then.keys()
    for key in keys:
        name = f"{prefix}{key}"
        old, new = (each.get(key, _MEANT.get(name)) for each in (then, now))
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{name}.")
        elif old != new:
            found.append(f"{name} differs" if len(f"{old}{new}") > 40 else f"{name} {old} -> {new}")
    return sorted(found)


def _data(checksums: Checksums, parts: tuple[str, ...]) -> dict[str, str]:
    return {f"{part} data": checksums[part] for part in parts if part in checksums}


def _section(recipe: Recipe, name: str) -> Recipe:
    found = recipe.get(name)
    return found if isinstance(found, Mapping) else {}


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
