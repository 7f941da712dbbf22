"""Artificial study folders with known numbers, written by the same functions as real ones."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.runs.identity import recipe_of
from attentiondrop.experiments.runs.kinds import FINAL, TUNING, VARIED
from attentiondrop.experiments.runs.store import Request, Result, write_request, write_result
from attentiondrop.experiments.studies.plan import Ablation, Comparison, Entry, Grid, write_study
from attentiondrop.experiments.train.epoch_log import Epoch, write_epoch
from attentiondrop.scores import ReliabilityDiagram, RobustnessReport

from ..conftest import scored

EPSILONS = [0.0, 0.01, 0.02, 0.04]
ENVIRONMENT = {
    "attentiondrop": "0.6.0",
    "torch": "2.15.0",
    "python": "3.11.9",
    "commit": "abc1234",
    "device": "aarch64 CPU, 2 cores, 2 threads",
}


def recipe(**changes: Any) -> dict[str, Any]:
    return {
        "name": "digits",
        "size": "demo",
        "data": {"name": "digits", "validation": 0.1, "label_noise": 0.0, "augment": "none"},
        "model": {"name": "vit_digits", "patch_size": 2, "depth": 4},
        "training": {"epochs": 12, "batch_size": 64, "learning_rate": 0.002, "weight_decay": 0.05},
        "evaluation": {"attack": "pgd"},
        "measure": {"every": 3},
    } | changes


def scores(accuracy: float, draw: random.Random) -> dict[str, float]:
    return scored(accuracy, 0.9 * (1 - accuracy) + 0.05, 0.01 + draw.random() / 50, 1.4 * (1 - accuracy), 0.99)


def epochs(accuracy: float, count: int, draw: random.Random, measured: bool, rate: float) -> list[Epoch]:
    found = []
    for index in range(1, count + 1):
        part = 1 - math.exp(-rate * index / count)
        look = measured and (index == 1 or index % 3 == 0)
        found.append(
            Epoch(
                epoch=index,
                learning_rate=0.001,
                train_loss=2.3 * math.exp(-rate * index / count) + 0.05 * draw.random(),
                validation=scored(
                    max(0.0, min(1.0, 0.1 + (accuracy - 0.1) * part + 0.01 * draw.gauss(0, 1))), 1 - 0.8 * part
                ),
                seconds=1.5,
                samples=1400,
                gradient_variance=rate * math.exp(-part) * (1 + 0.1 * draw.random()) if look else None,
                gradient_norm2=0.5 if look else None,
                attention_entropy=2.5 - part / rate + 0.02 * draw.random() if look else None,
                perturbed_entropy=2.7 - part / rate + 0.02 * draw.random() if look else None,
            )
        )
    return found


def reliability(accuracy: float) -> ReliabilityDiagram:
    """Ten bins, the lowest two empty."""
    middles = [(index + 0.5) / 10 for index in range(10)]
    confidence = [None if index < 2 else middle for index, middle in enumerate(middles)]
    hits = [
        None if index < 2 else max(0.0, middle - 2 * (1 - accuracy) * middle * (1 - middle))
        for index, middle in enumerate(middles)
    ]
    return ReliabilityDiagram(confidence, hits, [0, 0, *(4 * index for index in range(1, 8)), 200])


def write_run(
    out: Path,
    method: str,
    seed: int,
    ending: float | str | None,
    part: str = FINAL,
    *,
    memory: bool = False,
    measured: bool = True,
    settings: Mapping[str, Any] | None = None,
    error: str = "RuntimeError: out of memory",
    sound: bool = True,
) -> None:
    """Write a run that ended with an accuracy, or "diverged", "failed", "unfinished", "damaged"; None writes nothing.

    The accuracy is on the test part for a final run, and on the validation part for the others. A final run with a
    better test score has a worse validation score, so code that reads the wrong part shows other numbers.
    """
    if ending is None:
        return
    folder = run_folder(out, method, seed, part)
    draw = random.Random(f"{method} {seed}")
    plan = recipe_of(part, settings or recipe())
    checksums = {"train": "1a" * 32} | ({"test": "2b" * 32} if part == FINAL else {})
    write_request(folder, Request(method, seed, plan, checksums), ENVIRONMENT)
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    whole = plan["training"]["epochs"]
    done = whole if isinstance(ending, float) else 2
    rate = random.Random(method).uniform(3, 6)
    for epoch in epochs(ending if isinstance(ending, float) else 0.5, done, draw, measured, rate):
        write_epoch(folder, epoch)
    if ending == "damaged":
        (folder / "result.json").write_text("{")
    elif ending in ("diverged", "failed"):
        write_result(folder, Result(ending, 3.0, 2, error=error if ending == "failed" else None))
    elif isinstance(ending, float) and part != FINAL:
        validation = scores(ending, draw)
        write_result(
            folder, Result("finished", seconds=18.0, epochs=whole, best_epoch=whole - 1, validation=validation)
        )
    elif isinstance(ending, float):
        write_result(
            folder,
            Result(
                "finished",
                seconds=18.0 + seed,
                epochs=whole,
                best_epoch=whole - 1,
                validation=scores(1.8 - ending, draw) if ending > 0.8 else scores(1.0, draw),
                test=scores(ending, draw),
                reliability=reliability(ending),
                robustness=RobustnessReport(
                    "linf",
                    EPSILONS,
                    [ending * (1 - 20 * epsilon) for epsilon in EPSILONS],
                    steps=20,
                    restarts=2,
                    examples=200,
                    sound=sound,
                    notes=[] if sound else ["the loss did not rise with the steps"],
                ),
                throughput=900.0 + 10 * seed - 50 * ("hard" in method),
                peak_memory_mib=(100.0 + 50 * ("blur" in method)) if memory else None,
            ),
        )


Endings = Mapping[str, Sequence[float | str | None]]


def make_comparison(
    out: Path, endings: Endings, *, trials: Mapping[str, Mapping[str, float | str | None]] | None = None, **options: Any
) -> Path:
    """Write a comparison. Each method has one ending per seed; `trials` maps a method to the settings that were tried."""
    tried = trials or {}
    seeds = list(range(len(next(iter(endings.values())))))
    methods = [Entry(method.split("(")[0], method, list(tried.get(method, {}))) for method in endings]
    command = "attentiondrop compare digits --seeds 5"
    write_study(out, Comparison(command, dict(options.get("settings") or recipe()), seeds, 1000, methods))
    for method, ends in endings.items():
        for seed, ending in zip(seeds, ends, strict=True):
            write_run(out, method, seed, ending, **options)
    for attempts in tried.values():
        for method, ending in attempts.items():
            write_run(out, method, 1000, ending, TUNING, **options)
    return out


def make_ablation(
    out: Path,
    axes: Mapping[str, list[Any]],
    ending: Callable[[tuple[Any, ...], int], float | str | None],
    *,
    name: str = "hard",
    seeds: int = 3,
) -> Path:
    """Write an ablation over `axes`. `ending(point, seed)` gives the ending of a run; the baseline is `none` at 0.9."""
    points = list(itertools.product(*axes.values()))
    methods = [
        f"{name}({','.join(f'{field}={value}' for field, value in zip(axes, point, strict=True))})" for point in points
    ]
    grids = [Grid(name, dict(axes), methods)]
    seeded = list(range(seeds))
    write_study(out, Ablation("attentiondrop ablate digits", recipe(), seeded, grids, "none", part=VARIED))
    for seed in seeded:
        write_run(out, "none", seed, 0.9 + 0.002 * seed, VARIED)
        for method, point in zip(methods, points, strict=True):
            write_run(out, method, seed, ending(point, seed), VARIED)
    return out


@pytest.fixture
def comparison() -> Callable[..., Path]:
    return make_comparison


@pytest.fixture
def ablation() -> Callable[..., Path]:
    return make_ablation


@pytest.fixture
def full_study(tmp_path: Path) -> Path:
    """A study with everything: seven methods, five seeds, tuning, failed runs, an unsound attack, two ablations."""
    return make_full_study(tmp_path / "study")


def make_full_study(out: Path) -> Path:
    draw = random.Random(0)
    means = {
        "none": 0.93,
        "dropout(p=0.1)": 0.934,
        "hard(p=0.1,k=5)": 0.951,
        "blur(sigma_max=0.5)": 0.941,
        "dropkey(p=0.1)": 0.936,
        "noise(sigma=0.2)": 0.915,
        "dropout(p=0.1)+hard(p=0.1,k=5)+blur(sigma_max=0.5)": 0.945,
    }
    shared = [draw.gauss(0, 0.006) for _ in range(5)]
    endings: dict[str, list[float | str | None]] = {
        method: [mean + common + draw.gauss(0, 0.004) for common in shared] for method, mean in means.items()
    }
    endings["noise(sigma=0.2)"][1:4] = ["diverged", "failed", None]
    endings["dropkey(p=0.1)"][4] = "unfinished"
    trials: dict[str, dict[str, float | str | None]] = {
        "hard(p=0.1,k=5)": {"hard(p=0.1,k=5)": 0.95, "hard(p=0.2,k=5)": 0.94, "hard(p=0.1,k=10)": "diverged"},
        "blur(sigma_max=0.5)": {"blur(sigma_max=0.5)": 0.94, "blur(sigma_max=1.0)": 0.93},
    }
    error = "RuntimeError: <b>CUDA</b> & friends ran out of memory"
    make_comparison(out, endings, trials=trials, memory=True, error=error)
    write_run(out, "dropkey(p=0.1)", 0, 0.93, memory=True, sound=False)
    grids = [
        Grid("hard", {"p": [0.05, 0.1, 0.2, 0.4], "k": [1, 5, 10]}, []),
        Grid("blur", {"sigma_max": [0.25, 0.5, 1.0, 2.0]}, []),
    ]
    for seed in range(3):
        write_run(out, "none", seed, 0.93 + draw.gauss(0, 0.002), VARIED)
    for grid in grids:
        for point in itertools.product(*grid.axes.values()):
            fields = ",".join(f"{field}={value}" for field, value in zip(grid.axes, point, strict=True))
            method = f"{grid.name}({fields})"
            grid.methods.append(method)
            for seed in range(3):
                if (method, seed) != ("hard(p=0.4,k=10)", 2):
                    accuracy = 0.95 - 0.15 * (point[0] - 0.1) ** 2 - 0.002 * seed + draw.gauss(0, 0.002)
                    write_run(out, method, seed, accuracy if method != "hard(p=0.4,k=1)" else "diverged", VARIED)
    write_study(out, Ablation("attentiondrop ablate digits --seeds 3", recipe(), [0, 1, 2], grids, "none", part=VARIED))
    return out


@pytest.fixture(scope="session")
def full_study_maker() -> Callable[[Path], Path]:
    return make_full_study
