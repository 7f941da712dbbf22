"""The plan of a comparison or an ablation. It is stored beside the runs, so that the report can be made again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ...errors import ArgumentError, AttentionDropError
from ..files.typed_settings import build_settings
from ..files.whole_files import damaged, read_json, write_json
from ..methods.parse import read_method
from ..runs.folders import run_folder
from ..runs.kinds import FINAL
from ..runs.store import Run, lost_epochs, read_run

COMPARISON, ABLATION = "comparison.json", "ablation.json"


@dataclass(frozen=True)
class Entry:
    """One method of a comparison: as the user asked for it, and as tuning has set it."""

    #: As the user wrote it, such as "hard".
    name: str
    #: With all fields, such as "hard(p=0.1,k=5)"; None while it is being tuned.
    method: str | None
    #: The settings that were tried on the validation part; empty without tuning.
    trials: list[str]


@dataclass(frozen=True)
class Comparison:
    """Several methods, one recipe, the same seeds for each. Differences are to the first method."""

    command: str
    recipe: dict[str, Any]
    seeds: list[int]
    tuning_seed: int
    methods: list[Entry]
    #: SHA-256 of each part of the data; empty in studies of older versions.
    checksums: dict[str, str] = field(default_factory=dict)

    def all_methods(self) -> list[str]:
        """Every method that has runs, as it is written in full."""
        return [method for entry in self.methods for method in (*filter(None, [entry.method]), *entry.trials)]


@dataclass(frozen=True)
class Grid:
    """One ablation: a method with one or two of its fields varied."""

    #: The method, such as "hard".
    name: str
    #: Field -> values, for one or two fields.
    axes: dict[str, list[Any]]
    #: In the order of itertools.product over the axes.
    methods: list[str]


@dataclass(frozen=True)
class Ablation:
    """Several grids, one recipe, the same seeds everywhere; judged on the validation part, never on the test part."""

    command: str
    recipe: dict[str, Any]
    seeds: list[int]
    grids: list[Grid]
    #: The method the grids are compared with.
    baseline: str
    #: As in a comparison.
    checksums: dict[str, str] = field(default_factory=dict)
    #: The kind of its runs, which names their folder. Older versions kept them among the final runs.
    part: str = FINAL

    def all_methods(self) -> list[str]:
        """Every method that has runs, as it is written in full."""
        return [self.baseline, *(method for grid in self.grids for method in grid.methods)]


Plan = TypeVar("Plan", Comparison, Ablation)


@dataclass(frozen=True)
class Study:
    """The content of a folder that `compare` or `ablate` wrote."""

    folder: Path
    comparison: Comparison | None
    ablation: Ablation | None

    @property
    def plan(self) -> Comparison | Ablation:
        """What the folder is about: the comparison, or the ablation if there is none."""
        plan = self.comparison or self.ablation
        if plan is None:
            raise ArgumentError("study: expected a comparison or an ablation, received neither")
        return plan

    def run(self, method: str, seed: int, part: str = FINAL) -> Run | None:
        """One of its runs, or None if it does not exist yet. One that lost epochs is damaged."""
        run = read_run(run_folder(self.folder, method, seed, part))
        lost = None if run is None else lost_epochs(run)
        if run is not None and lost is not None:
            raise damaged(run.folder, ValueError(lost))
        return run


def write_study(out: Path, study: Comparison | Ablation) -> None:
    """Write the plan of a study into its folder."""
    name = COMPARISON if isinstance(study, Comparison) else ABLATION
    write_json(out / name, dataclasses.asdict(study))


def read_study(out: Path) -> Study:
    """Read the plans in a folder; a folder without one is an error."""
    comparison, ablation = read_json(out / COMPARISON), read_json(out / ABLATION)
    if comparison is None and ablation is None:
        hint = ""
        if out.is_dir() and any(out.glob("*/*/*/run.json")):
            hint = "; it has runs of `train`: `compare` with the same recipe and --out makes a report of them"
        raise ArgumentError(f"{out}: expected the folder of `attentiondrop compare` or `ablate`, found neither{hint}")
    return Study(out, _read(Comparison, comparison, out / COMPARISON), _read(Ablation, ablation, out / ABLATION))


def _read(cls: type[Plan], content: Any, path: Path) -> Plan | None:
    """Build a plan from the content of a file. Every field must be there with its type, and every method readable."""
    if content is None:
        return None
    try:
        study = build_settings(cls, content)
        for method in study.all_methods():
            read_method(method)
    except (AttentionDropError, TypeError) as error:
        raise damaged(path, error) from error
    return study
