"""Files of a run that were changed, cut off or left over: one line names the file, and nothing crashes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attentiondrop.cli.main import main
from attentiondrop.experiments.files.whole_files import DamagedRecordError
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.finished_run import load_run
from attentiondrop.experiments.runs.job import LOCK, WouldEraseError
from attentiondrop.experiments.runs.leftovers import remove_temporary
from attentiondrop.experiments.runs.store import REQUEST, RESULT, read_run
from attentiondrop.experiments.studies.plan import Study
from attentiondrop.experiments.train.checkpoint import load_state, save_state, save_weights
from attentiondrop.experiments.train.epoch_log import BEST, EPOCHS, LAST, STATE


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, and the state that it had after its first epoch."""
    from attentiondrop.experiments.config.recipe_files import read_recipe
    from attentiondrop.experiments.runs.job import Job

    from ..conftest import TINY

    out = tmp_path_factory.mktemp("finished")
    job = Job(read_recipe("digits", "demo", TINY).to_dict(), "none", 0, str(out))

    def keep(done: int) -> None:
        if done == 1:
            shutil.copy(job.folder / STATE, out / STATE)

    return out, execute(job, keep)


@pytest.fixture
def run(finished, job) -> Path:
    """A copy of the finished run, where `job()` looks for it."""
    shutil.copytree(finished[0] / "runs", Path(job().out) / "runs")
    return job().folder


@pytest.fixture
def halfway(finished, run: Path) -> Path:
    """The same run, as if it was killed after its first epoch."""
    shutil.copy(finished[0] / STATE, run / STATE)
    for name in (RESULT, LAST):
        (run / name).unlink()
    return run


def test_epochs_that_a_finished_run_lacks_are_damage(run: Path) -> None:
    """They would count as no time, and so would make a method look fast."""
    lines, study = (run / EPOCHS).read_text(), Study(run.parents[2], None, None)
    for left in (lines[: len(lines) // 2], lines[:-2], ""):
        (run / EPOCHS).write_text(left)
        with pytest.raises(DamagedRecordError, match=rf"{EPOCHS} has \d of 2 epochs"):
            study.run("none", 0)
    (run / EPOCHS).write_text(lines + lines.splitlines()[-1] + "\n")  # older versions may have repeated one
    assert study.run("none", 0).result.status == "finished"


def test_a_finished_run_that_lost_epochs_is_not_erased_without_being_asked(run: Path, job) -> None:
    """Its weights and scores are there."""
    (run / EPOCHS).write_text((run / EPOCHS).read_text()[:-1])
    with pytest.raises(WouldEraseError, match=rf"damaged \({EPOCHS} has 1 of 2 epochs\), 1 finished run would be"):
        execute(job())
    assert load_run(run).record.result.status == "finished"
    execute(job(overwrite=True))
    assert len(read_run(run).epochs) == 2


def test_a_run_of_an_unknown_task_names_its_request(run: Path) -> None:
    stored = json.loads((run / REQUEST).read_text())
    stored["recipe"]["task"] = "painting"
    (run / REQUEST).write_text(json.dumps(stored))
    with pytest.raises(DamagedRecordError, match=rf"{REQUEST} cannot be read: .*painting"):
        read_run(run)


def line_of(capsys, *arguments: str) -> str:
    assert main([*arguments]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    said = [line for line in error.splitlines() if line.startswith("attentiondrop ")]
    assert len(said) == 1 and said[0] == error.splitlines()[-1]
    return said[0]


def test_weights_of_another_model_are_one_line(run: Path, capsys) -> None:
    from timm import create_model

    save_weights(run / BEST, create_model("resnet10t").state_dict())
    line = line_of(capsys, "evaluate", str(run), "--device", "cpu")
    assert f"{run / BEST} does not hold the weights of vit_digits: of its " in line
    assert "are missing and 0 have another shape" in line
    assert len(line) < 600


def test_weights_of_the_same_model_in_another_size_are_one_line(run: Path, capsys) -> None:
    from attentiondrop.experiments.tasks.classification import digits_vit as digits

    save_weights(run / BEST, digits.build(embed_dim=32, num_heads=2, depth=2).state_dict())
    line = line_of(capsys, "evaluate", str(run), "--device", "cpu")
    assert "0 are missing and " in line and "has [1, 1, 32] for [1, 1, 16]" in line


def changed(path: Path, **changes: object) -> str:
    return json.dumps(json.loads(path.read_text()) | changes)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (REQUEST, ""),
        (REQUEST, "[]"),
        (REQUEST, "[" * 100_000),
        (REQUEST, "\xff"),
        (REQUEST, {"seed": "zero"}),
        (REQUEST, {"seed": 10**400}),
        (REQUEST, {"checksums": ["a"]}),
        (REQUEST, {"checksums": {"train": 3}}),
        (REQUEST, {"environment": []}),
        (REQUEST, {"recipe": {"training": {"epochs": "many"}}}),
        (REQUEST, {"recipe": 3}),
        (REQUEST, {"method": "hrad"}),
        (REQUEST, {"more": 1}),
        (EPOCHS, "{}\n"),
        (EPOCHS, "[1]\n"),
        (EPOCHS, '{"epoch": 1\n'),
        (RESULT, '{"status": "fin'),
        (RESULT, {"seconds": "long"}),
        (RESULT, {"seconds": float("nan")}),
        (RESULT, {"test": {"accuracy": 1}}),
        (RESULT, {"validation": None}),
        (RESULT, {"reliability": {"confidence": [1], "accuracy": ["x"], "count": [1]}}),
        (BEST, ""),
        (BEST, "\0" * 100),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_changed_record_is_one_line_that_names_it(
    run: Path, capsys, name: str, content: str | dict[str, object]
) -> None:
    text = changed(run / name, **content) if isinstance(content, dict) else content
    (run / name).write_bytes(text.encode("latin-1"))
    line = line_of(capsys, "evaluate", str(run), "--device", "cpu")
    assert f"{run / name} cannot be read: " in line and len(line) < 1200


@pytest.mark.parametrize("command", ["certify", "variance"])
def test_other_commands_say_the_same(run: Path, capsys, command: str) -> None:
    _cut(run / BEST)
    assert f"{run / BEST} cannot be read: " in line_of(capsys, command, str(run), "--device", "cpu")
    _cut(run / RESULT)
    assert f"{run / RESULT} cannot be read: " in line_of(capsys, command, str(run), "--device", "cpu")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", {"methods": 3}, {"methods": [{"name": "none"}]}, {"seeds": "x"}, {"seeds": [0.5]}, {"recipe": []}],
    ids=str,
)
def test_a_changed_study_is_one_line_that_names_it(tmp_path: Path, capsys, content) -> None:
    study = {"command": "", "recipe": {}, "seeds": [0], "tuning_seed": 0, "methods": []}
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps(study | content) if isinstance(content, dict) else content)
    assert f"{path} cannot be read: " in line_of(capsys, "report", str(tmp_path))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _without_optimiser(path: Path) -> None:
    state = load_state(path)
    del state["optimizer"]
    save_state(path, state)


def _of_another_model(path: Path) -> None:
    state = load_state(path)
    state["model"] = {f"other.{key}": value for key, value in state["model"].items()}
    save_state(path, state)


def _of_a_later_epoch(path: Path) -> None:
    save_state(path, load_state(path) | {"epoch": 7})


def _of_no_epoch(path: Path) -> None:
    save_state(path, load_state(path) | {"epoch": "one"})


@pytest.mark.parametrize("damage", [_cut, _without_optimiser, _of_another_model, _of_a_later_epoch, _of_no_epoch])
def test_a_damaged_state_is_said_and_the_run_starts_again(damage, finished, halfway: Path, job) -> None:
    damage(halfway / STATE)
    lines: list[str] = []
    result = execute(job(), say=lines.append)
    assert len(lines) == 1 and "none, seed 0: starts again, since " in lines[0] and str(halfway) in lines[0]
    assert result.test == finished[1].test and result.epochs == 2


def test_a_sound_state_goes_on(finished, halfway: Path, job) -> None:
    lines: list[str] = []
    result = execute(job(), say=lines.append)
    assert lines == ["none, seed 0: resumes after epoch 1"]
    assert result.test == finished[1].test


def test_best_weights_that_are_damaged_start_the_run_again(finished, halfway: Path, job) -> None:
    """The best weights are read only at the end, if no later epoch is better."""
    state = load_state(halfway / STATE)
    state["best"] |= {"accuracy": 2.0}
    save_state(halfway / STATE, state)
    _cut(halfway / BEST)
    lines: list[str] = []
    result = execute(job(), say=lines.append)
    assert [line.split(", since")[0] for line in lines] == [
        "none, seed 0: resumes after epoch 1",
        "none, seed 0: starts again",
    ]
    assert result.test == finished[1].test


def test_half_written_files_of_a_kill_are_removed(halfway: Path, job) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    ours = [f".{name}.{dead.pid}.tmp" for name in (STATE, BEST, "epoch12.safetensors", REQUEST, RESULT)]
    ours.append(f".{LAST}.{os.getpid()}.tmp")
    others = [f".{STATE}.{os.getppid()}.tmp", f".evaluation.json.{dead.pid}.tmp", ".notes.tmp", "mine.tmp"]
    for name in (*ours, *others):
        (halfway / name).write_bytes(b"half")
    execute(job())
    assert {path.name for path in halfway.iterdir()} == {REQUEST, EPOCHS, RESULT, BEST, LAST, LOCK, *others}


def test_half_written_files_of_other_runs_stay(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f".{STATE}.999999999.tmp").touch()
    remove_temporary(tmp_path / "here")
    assert not list((tmp_path / "here").iterdir()) and len(list((tmp_path / "there").iterdir())) == 1


def test_a_run_that_another_process_works_on_keeps_its_files(job) -> None:
    from filelock import FileLock

    from attentiondrop.experiments.runs.execute import BusyError

    job().folder.mkdir(parents=True)
    half = job().folder / f".{STATE}.999999999.tmp"
    half.touch()
    with FileLock(job().folder / LOCK), pytest.raises(BusyError):
        execute(job(), wait=False)
    assert half.exists() and read_run(job().folder) is None
