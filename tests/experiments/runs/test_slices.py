"""A study in slices: no run ends after the time, small records are enough to go on, bundles compile once."""

from __future__ import annotations

import dataclasses
import json
import math
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.files.whole_files import write_json
from attentiondrop.experiments.runs import deadline, pool
from attentiondrop.experiments.runs.deadline import Deadline
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.runs.pool import OutOfTimeError, Where
from attentiondrop.experiments.runs.store import Result
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.studies.plan import read_study
from attentiondrop.experiments.studies.step_costs import COSTS, measure_costs, read_costs

from ..conftest import TINY

METHODS = ["none", "dropout"]


def test_no_run_starts_that_would_end_after_the_time_and_finished_ones_stay(
    tiny, listener, tmp_path, trained, monkeypatch
) -> None:
    clock = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(deadline, "time", SimpleNamespace(time=lambda: next(clock)))
    with pytest.raises(OutOfTimeError, match="the time is over, 2 of 4 runs are left: run the same command to go on"):
        compare(tiny, METHODS, 2, tmp_path, listener, where=Where(deadline=Deadline(2.5)))
    assert len(trained) == 2
    monkeypatch.undo()


@pytest.mark.parametrize("stop", [OutOfTimeError("the time is over"), KeyboardInterrupt()])
def test_what_the_trials_chose_is_written_down_when_a_slice_ends(
    listener, tmp_path, trained, monkeypatch, stop: BaseException
) -> None:
    recipe = read_recipe("digits", "demo", [*TINY, "training.epochs=1", "tuning.trials=2"])
    real, done = pool.execute, []

    def execute(one, *given) -> Result:
        if len(done) == 3:
            raise stop
        done.append(one.label)
        return real(one, *given)

    monkeypatch.setattr(pool, "execute", execute)
    with pytest.raises(type(stop)):
        compare(recipe, METHODS, 2, tmp_path, listener)
    none, dropout = read_study(tmp_path).comparison.methods
    assert none.method in none.trials and len(none.trials) == 2
    assert dropout.method is None  # one of its trials has not ended


def test_a_bundle_ends_with_the_time(job, monkeypatch) -> None:
    monkeypatch.setattr(pool, "execute", lambda one, say: Result("finished", float(one.seed), epochs=1))
    clock = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(deadline, "time", SimpleNamespace(time=lambda: next(clock)))
    found = list(pool._several([job("none", seed) for seed in range(5)], Deadline(1.5)))
    assert [(number, result.seconds, lines) for number, result, lines in found] == [(0, 0.0, []), (1, 1.0, [])]


def test_a_worker_sets_compiled_code_aside(tiny, tmp_path, monkeypatch) -> None:
    """Else each captured step would search all of it for garbage."""
    asked = []
    monkeypatch.setattr(pool, "execute", lambda one, say: Result("finished", 1.0, epochs=1))
    monkeypatch.setattr(pool, "atexit", SimpleNamespace(register=asked.append, unregister=lambda function: None))
    fake = {"collect": lambda: asked.append(1), "freeze": lambda: asked.append(2), "unfreeze": 3}
    monkeypatch.setattr(pool, "gc", SimpleNamespace(**fake))
    for compiled in (False, True):
        training = dataclasses.replace(tiny.training, compile=compiled)
        recipe = dataclasses.replace(tiny, training=training).to_dict()
        list(pool._several([Job(recipe, "none", seed, str(tmp_path)) for seed in range(2)], Deadline()))
        assert asked == [1, 2, 3] * (2 if compiled else 0)


def test_one_worker_sets_compiled_code_aside_between_runs_and_gives_it_back(tiny, tmp_path, monkeypatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(pool, "_one", lambda job, bar, wait: asked.append(job.seed))
    fake = {name: lambda name=name: asked.append(name) for name in ("collect", "freeze", "unfreeze")}
    monkeypatch.setattr(pool, "gc", SimpleNamespace(**fake))
    monkeypatch.setattr(
        pool, "atexit", SimpleNamespace(register=lambda function: None, unregister=lambda function: None)
    )
    for compiled, expected in ((False, [0, 1]), (True, [0, "collect", "freeze", 1, "unfreeze"])):
        asked.clear()
        training = dataclasses.replace(tiny.training, compile=compiled)
        recipe = dataclasses.replace(tiny, training=training).to_dict()
        jobs = [Job(recipe, "none", seed, str(tmp_path)) for seed in range(2)]
        list(pool._in_sequence(jobs, SimpleNamespace(), Deadline()))
        assert asked == expected


def test_bundles_hold_runs_that_share_compiled_code(tiny, tmp_path) -> None:
    compiled = dataclasses.replace(tiny, training=dataclasses.replace(tiny.training, compile=True)).to_dict()
    order = [(method, seed) for seed in range(6) for method in ("none", "hard(p=0.1,k=5)", "hard(p=0.2,k=5)+dropout")]
    jobs = [Job(compiled, method, seed, str(tmp_path)) for method, seed in order]
    bundles = pool._bundles(jobs, 2)
    assert all(len({job.method for job in bundle}) == 1 for bundle in bundles)
    assert [len(bundle) for bundle in bundles] == [3] * 6 and math.ceil(18 / 6) == 3
    assert sorted(map(repr, jobs)) == sorted(repr(job) for bundle in bundles for job in bundle)
    plain = [Job(tiny.to_dict(), method, seed, str(tmp_path)) for method, seed in order]
    assert pool._bundles(plain, 2) == [[job] for job in plain]


def test_a_study_goes_on_from_its_records_alone(program, tmp_path, capsys, monkeypatch) -> None:
    changes = [*TINY, "training.epochs=1", "seeds=2", "tuning.trials=2"]
    first = tmp_path / "records.tar.gz"
    command = ["run", "digits", "--size", "demo", "--set", *changes, "--methods", *METHODS, "--workers", "1"]
    real = program.compare

    def stopped(*args, **options):
        def time() -> float:
            # By the files, not by what is said: a slow machine says more.
            return float(len(list(Path(args[3]).rglob("result.json"))) >= 5)

        monkeypatch.setattr(deadline, "time", SimpleNamespace(time=time))
        return real(*args, **{**options, "where": Where(1, deadline=Deadline(0.5))})

    monkeypatch.setattr(program, "compare", stopped)
    assert program.main([*command, "--records", str(first)]) == 3
    monkeypatch.undo()
    assert "the time is over" in capsys.readouterr().out
    with tarfile.open(first) as archive:
        names = archive.getnames()
    assert {Path(name).name for name in names} == {"comparison.json", "run.json", "metrics.jsonl", "result.json"}
    assert sum(name.endswith("result.json") for name in names) == 5
    assert program.main([*command, "--records", str(first), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "5 of 8 runs are finished already" in said  # four trials, and one of four final runs
    assert set(read_costs(tmp_path / "out")) and f"{first}: 8 runs" in said
    assert program.main(["rank", str(first)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert program.main(["publish", str(first), str(tmp_path / "published"), "--commit", "abc"]) == 0
    assert {path.name for path in (tmp_path / "published").iterdir()} == {"results.csv", "costs.json", "recipe.yaml"}
    # Published again without a commit, the one that is known stays. Paths of this machine are not published.
    data = tmp_path / "images" / "mine.npz"
    program.unpack(first, tmp_path / "seen")
    plan = json.loads((tmp_path / "seen" / "comparison.json").read_text())
    plan["recipe"]["data"]["root"], plan["recipe"]["model"]["checkpoint"] = str(data), "relative/weights"
    (tmp_path / "seen" / "comparison.json").write_text(json.dumps(plan))
    program.pack(tmp_path / "seen", first)
    assert program.main(["publish", str(first), str(tmp_path / "published")]) == 0
    assert yaml.safe_load((tmp_path / "published" / "recipe.yaml").read_text())["commit"] == "abc"
    recipe = yaml.safe_load((tmp_path / "published" / "recipe.yaml").read_text())["recipe"]
    assert (recipe["data"]["root"], recipe["model"]["checkpoint"]) == ("mine.npz", "relative/weights")


def test_an_interruption_keeps_the_records(program, tmp_path, capsys, monkeypatch) -> None:
    real, file = program.compare, tmp_path / "records.tar.gz"

    def interrupted(*args, **options):
        real(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "compare", interrupted)
    changes = [*TINY, "training.epochs=1", "seeds=1", "tuning.trials=0"]
    command = ["run", "digits", "--size", "demo", "--set", *changes, "--methods", "none", "--workers", "1"]
    assert program.main([*command, "--records", str(file)]) == 130
    said = capsys.readouterr()
    assert f"{file}: 1 runs" in said.out and "the same command goes on" in said.err
    with tarfile.open(file) as archive:
        assert any(name.endswith("result.json") for name in archive.getnames())


def test_each_cost_is_kept_at_once_and_a_slice_whose_costs_are_left_goes_on(
    program, tmp_path, capsys, monkeypatch
) -> None:
    file, kept = tmp_path / "records.tar.gz", []
    changes = [*TINY, "training.epochs=1", "seeds=1", "tuning.trials=0"]
    command = ["run", "digits", "--size", "demo", "--set", *changes, "--methods", *METHODS, "--workers", "1"]
    real = program.measure_costs

    def measured(recipe, methods, folder, say, is_over):
        ended = []

        def heard(line: str) -> None:
            say(line)
            with tarfile.open(file) as archive:
                kept.append(COSTS in archive.getnames())
            ended.append(line)

        return real(recipe, methods, folder, heard, lambda: len(ended) == 1)

    monkeypatch.setattr(program, "measure_costs", measured)
    assert program.main([*command, "--records", str(file)]) == 3
    assert kept == [True] and "1 costs are left: run the same command to go on" in capsys.readouterr().out
    assert program.main([*command, "--records", str(file)]) == 0 and kept == [True, True]


def test_costs_are_measured_once_and_kept(tiny, tmp_path) -> None:
    recipe = read_recipe("digits", "demo", [*TINY, "training.epochs=1"])
    said: list[str] = []
    found = measure_costs(recipe, ["none", "hard"], tmp_path, said.append)
    assert set(found) == {"none", "hard(p=0.1,k=5)"} and all(cost.seconds > 0 for cost in found.values())
    assert said[0] == f"none: {1e3 * found['none'].seconds:.2f} ms a step, it needs CUDA, and the device is cpu"
    assert len(said) == 2 and found["none"].capture == "it needs CUDA, and the device is cpu"
    assert measure_costs(recipe, ["none", "hard"], tmp_path, said.append) == found == read_costs(tmp_path)
    assert len(said) == 2
    assert measure_costs(recipe, ["blur"], tmp_path, said.append, lambda: True) == found
    # Those of another device are measured again.
    other = dataclasses.asdict(found["none"]) | {"seconds": 1e-9, "device": "NVIDIA H200"}
    write_json(tmp_path / COSTS, {"none": other, "hard(p=0.1,k=5)": dataclasses.asdict(found["hard(p=0.1,k=5)"])})
    again = measure_costs(recipe, ["none", "hard"], tmp_path, said.append)
    assert len(said) == 3 and again["none"].device == found["none"].device and again["none"].seconds > 1e-9
