"""The folder of a run: its request, one line per epoch, and its result, which is written last."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...errors import AttentionDropError
from ...scores import ReliabilityDiagram, RobustnessReport
from ..files.typed_settings import build_settings
from ..files.whole_files import damaged, read_json, read_lines, write_json
from ..tasks.exhibits import Exhibits
from ..tasks.registry import task_of
from ..train.epoch_log import EPOCHS, Epoch, upgraded_epoch
from .identity import differences, scored_from
from .kinds import FINAL

#: Increase this when training or evaluation changes its meaning. Results of an older format are not reused.
FORMAT = 2
#: The same, for methods of which some parts act on the last layers and others on all: all acted on the last ones.
FORMAT_OF_TAILS = 3

REQUEST, RESULT, TRACEBACK = "run.json", "result.json", "traceback.txt"

#: In the environment of a run: how many runs shared its machine.
AT_ONCE = "runs at once"
#: In the environment of a run: versions that may change its numbers, although the recipe is the same.
VERSIONS = ("torch", "attentiondrop", "commit")

Record = TypeVar("Record")


@dataclass(frozen=True)
class Request:
    """What was asked for: everything that the numbers of a run depend on, known before it starts."""

    method: str
    seed: int
    #: The recipe with every field, in plain JSON types.
    recipe: dict[str, Any]
    #: SHA-256 of the parts of the data that the run is given, after limiting and label noise: "train", "validation"
    #: and, for a final run, "test".
    checksums: dict[str, str]
    format: int = FORMAT


@dataclass(frozen=True)
class Result:
    """How a run ended: `finished`, `diverged` (the loss stopped being a number) or `failed` (with the error)."""

    status: str
    seconds: float
    epochs: int
    error: str | None = None
    #: The epoch whose weights are scored: the best on the validation part, or the last, as `training.select` says.
    best_epoch: int | None = None
    #: Every metric of the task, by name.
    validation: dict[str, float] | None = None
    test: dict[str, float] | None = None
    reliability: ReliabilityDiagram | None = None
    robustness: RobustnessReport | None = None
    #: Metric -> how exactly it was computed, such as the signature of sacreBLEU; None if there is nothing to say.
    signatures: dict[str, str] | None = None
    #: Texts and pictures for a report. None unless the task makes some.
    exhibits: Exhibits | None = None
    #: Steps of the optimiser in training, parameters of the model, examples in each part. None in older records.
    steps: int | None = None
    parameters: int | None = None
    counts: dict[str, int] | None = None
    #: A checksum of what the seed drew to train on, if the checksums of the request do not tell it.
    drawn_checksum: str | None = None
    #: Training samples per second: the median over epochs, without the first.
    throughput: float | None = None
    #: Of the accelerator: tensors, and all that torch held for them, memory of CUDA graphs included. None on a CPU.
    peak_memory_mib: float | None = None
    peak_reserved_mib: float | None = None
    #: "captured" where steps were replayed as CUDA graphs, else why not; None on a CPU and in older records.
    capture: str | None = None
    #: What decides the scores beside the weights, as `identity.scored_from` lists it, and the versions that computed
    #: the scores. None in records of older versions, which scored a run only once, with the settings of its request.
    scored: dict[str, Any] | None = None
    scored_with: dict[str, str] | None = None

    def without_test(self) -> Result:
        """The result without anything from the test part, for choosing settings."""
        return dataclasses.replace(self, test=None, reliability=None, robustness=None, exhibits=None)


@dataclass(frozen=True)
class Run:
    """The content of the folder of a run. `result` is None while the run is not finished."""

    folder: Path
    request: Request
    #: Versions, commit, hardware, as plain texts.
    environment: dict[str, str]
    epochs: list[Epoch]
    result: Result | None


def write_request(folder: Path, request: Request, environment: dict[str, str]) -> None:
    """Write the request, when a run begins."""
    write_json(folder / REQUEST, {**dataclasses.asdict(request), "environment": environment})


def write_result(folder: Path, result: Result) -> None:
    """Write the result, when a run ends."""
    write_json(folder / RESULT, dataclasses.asdict(result))


def scored_by(run: Run) -> dict[str, Any]:
    """What decided the scores of a final run beside its weights."""
    if run.result is not None and run.result.scored is not None:
        return run.result.scored
    return scored_from(run.request.recipe, run.request.checksums, FINAL)


def changed_scores(run: Run, now: Mapping[str, Any]) -> list[str]:
    """How what decides the scores now (`scored_from`) differs from what decided those of a final run, in words."""
    then = scored_by(run)
    if attacked_all(run):
        then, now = (_without_choice(each) for each in (then, now))
    return differences(then, now)


def attacked_all(run: Run) -> bool:
    """Whether the attack took all test images, whichever way it chooses some of them."""
    if run.result is None or run.result.robustness is None:
        return False
    attacked, asked = run.result.robustness.examples, scored_by(run).get("evaluation", {}).get("pgd_examples")
    return attacked == (run.result.counts or {}).get("test") or (asked is not None and attacked < asked)


def _without_choice(scored: Mapping[str, Any]) -> dict[str, Any]:
    evaluation = {key: value for key, value in scored.get("evaluation", {}).items() if key != "pgd_choice"}
    return {**scored, "evaluation": evaluation}


def read_run(folder: Path) -> Run | None:
    """The run in `folder`, or None if there is none. Raises `DamagedRecordError` if it cannot be read."""
    request = read_json(folder / REQUEST)
    if request is None:
        return None
    lines, result = read_lines(folder / EPOCHS), read_json(folder / RESULT)
    environment = request.pop("environment", None) if isinstance(request, dict) else None
    stored = _build(_Environment, {"environment": environment}, folder / REQUEST)
    asked = _build(Request, request, folder / REQUEST)
    return Run(
        folder,
        asked,
        stored.environment,
        [_build(Epoch, upgraded_epoch(line), folder / EPOCHS) for line in lines],
        None if result is None else _result(result, asked, folder / RESULT),
    )


def lost_epochs(run: Run) -> str | None:
    """Which epochs of a finished run were lost, in words: they would count as no time. None if all are there.

    A killed run may lack the end of its last line. A finished one has all of them.
    """
    known = len({epoch.epoch for epoch in run.epochs})
    if run.result is None or run.result.status != "finished" or known >= run.result.epochs:
        return None
    return f"{EPOCHS} has {known} of {run.result.epochs} epochs"


@dataclass(frozen=True)
class _Environment:
    """The part of `run.json` that is not the request."""

    environment: dict[str, str]


def _result(content: Any, request: Request, path: Path) -> Result:
    result = _build(Result, _upgraded_result(content), path)
    try:
        metrics = task_of(request.recipe).metrics
    except AttentionDropError as error:
        raise damaged(path.with_name(REQUEST), error) from error
    for part, scores in (("validation", result.validation), ("test", result.test)):
        if scores is not None and not metrics.can_judge(scores):
            raise damaged(path, ValueError(f"{part} lacks metrics of its task, it has {', '.join(scores) or 'none'}"))
    if result.status not in ("finished", "diverged", "failed") or (result.status == "finished") != (
        result.validation is not None
    ):
        raise damaged(path, ValueError(f"status {result.status!r} does not fit what was recorded"))
    return result


def _upgraded_result(content: Any) -> Any:
    """A result in today's form. Older versions wrote null for a metric that the task does not have."""
    if not isinstance(content, dict):
        return content
    parts = {part: content[part] for part in ("validation", "test") if isinstance(content.get(part), dict)}
    return content | {
        part: {name: value for name, value in scores.items() if value is not None} for part, scores in parts.items()
    }


def _build(cls: type[Record], content: Any, path: Path) -> Record:
    """Build a record from the content of a file. Every field must be there with its type."""
    try:
        return build_settings(cls, content)
    except (AttentionDropError, TypeError) as error:
        raise damaged(path, error) from error
