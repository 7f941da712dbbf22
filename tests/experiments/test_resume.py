"""Records: nothing finished is lost, nothing stale is kept."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from attentiondrop.experiments import compare as comparing
from attentiondrop.experiments import record
from attentiondrop.experiments.compare import compare
from attentiondrop.experiments.methods import Method, read_methods
from attentiondrop.experiments.recipe import Recipe
from attentiondrop.experiments.record import DamagedRecordError, Metrics, RunResult, load, save, write_json

METHODS = read_methods(["none", "dropout"])


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Replaces training by something instant and lists which runs it was asked for."""
    runs: list[tuple[str, int]] = []

    def run(method: Method, seed: int, recipe: Recipe, data, on_epoch) -> RunResult:
        runs.append((method.text, seed))
        on_epoch(recipe.epochs)
        metrics = Metrics(accuracy=0.5 + seed / 10, ece=0.1, nll=1.0)
        resolved = comparing.resolved(recipe)
        return RunResult(method.text, seed, resolved, data.checksum, {}, "finished", [1.0], metrics, 1.0 + seed)

    monkeypatch.setattr(comparing, "run", run)
    return runs


ALL = [("none", 0), ("dropout(p=0.1)", 0), ("none", 1), ("dropout(p=0.1)", 1)]


def test_real_runs_are_recorded_with_what_made_them(tiny, listener, tmp_path: Path) -> None:
    compare(METHODS[:1], 1, tiny, tmp_path, listener)
    stored = json.loads((tmp_path / "none" / "seed0" / "result.json").read_text())
    assert (stored["method"], stored["seed"], stored["status"]) == ("none", 0, "finished")
    assert stored["recipe"]["epochs"] == 1
    assert stored["recipe"]["model"]["embed_dim"] == 64
    assert len(stored["data_checksum"]) == 64
    assert {"attentiondrop", "torch", "timm", "python", "platform", "device"} <= stored["environment"].keys()
    assert len(stored["train_loss"]) == 1
    assert stored["metrics"].keys() == {"accuracy", "ece", "nll"}
    assert listener.planned == listener.done[-1] == 1


def test_finished_runs_are_not_run_again(tiny, listener, tmp_path, trained) -> None:
    first = compare(METHODS, 2, tiny, tmp_path, listener)
    assert trained == ALL
    assert listener.planned == 4
    assert listener.done == sorted(listener.done)
    before = (tmp_path / "results.json").read_bytes()
    assert compare(METHODS, 2, tiny, tmp_path, listener) == first
    assert trained == ALL
    assert listener.planned == 0
    assert f"4 of 4 runs are finished already in {tmp_path}" in listener.lines
    assert (tmp_path / "results.json").read_bytes() == before


def test_more_seeds_and_methods_run_only_what_is_missing(tiny, listener, tmp_path, trained) -> None:
    compare(METHODS[:1], 1, tiny, tmp_path, listener)
    rows = compare(METHODS, 2, tiny, tmp_path, listener)
    assert trained == ALL
    assert [row.method for row in rows] == ["none", "dropout(p=0.1)"]


@pytest.mark.parametrize(
    "content", ['{"method": "none", "se', "", "[]", "null", "{}", '{"metrics": {"accuracy": 1}}', "\0\0\0"]
)
def test_a_damaged_result_is_run_again(content: str, tiny, listener, tmp_path, trained) -> None:
    compare(METHODS, 2, tiny, tmp_path, listener)
    path = tmp_path / "none" / "seed1" / "result.json"
    path.write_text(content)
    compare(METHODS, 2, tiny, tmp_path, listener)
    assert trained[4:] == [("none", 1)]
    assert sum("none, seed 1: run again, since" in line and "cannot be read" in line for line in listener.lines) == 1
    assert load(path) is not None


def test_a_result_with_numbers_that_are_none_is_damaged(tiny, listener, tmp_path, trained) -> None:
    compare(METHODS[:1], 1, tiny, tmp_path, listener)
    path = tmp_path / "none" / "seed0" / "result.json"
    stored = json.loads(path.read_text())
    for change in ({"seconds": "long"}, {"metrics": None}, {"recipe": 3}, {"status": "odd"}):
        path.write_text(json.dumps(stored | change))
        with pytest.raises(DamagedRecordError):
            load(path)


def test_changed_settings_are_run_again_and_said(tiny, listener, tmp_path, trained) -> None:
    compare(METHODS, 2, tiny, tmp_path, listener)
    compare(METHODS, 2, dataclasses.replace(tiny, epochs=2), tmp_path, listener)
    assert trained[4:] == ALL
    assert "none, seed 0: run again, since settings changed (epochs 1 -> 2)" in listener.lines


def test_changed_data_and_formats_are_run_again(tiny, listener, tmp_path, trained, monkeypatch) -> None:
    compare(METHODS[:1], 1, tiny, tmp_path, listener)
    path = tmp_path / "none" / "seed0" / "result.json"
    path.write_text(path.read_text().replace('"data_checksum": "', '"data_checksum": "0'))
    compare(METHODS[:1], 1, tiny, tmp_path, listener)
    assert "none, seed 0: run again, since settings changed (data checksum differs)" in listener.lines
    monkeypatch.setattr(record, "FORMAT", 2)
    compare(METHODS[:1], 1, tiny, tmp_path, listener)
    assert "none, seed 0: run again, since settings changed (format 1 -> 2)" in listener.lines
    assert len(trained) == 3


def test_an_interruption_loses_nothing_finished(tiny, listener, tmp_path, trained, monkeypatch) -> None:
    whole = comparing.run

    def interrupted(method, seed, *rest):
        if (method.text, seed) == ALL[2]:
            raise KeyboardInterrupt
        return whole(method, seed, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(comparing, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compare(METHODS, 2, tiny, tmp_path, listener)
    assert not (tmp_path / "results.json").exists()
    compare(METHODS, 2, tiny, tmp_path, listener)
    assert trained == ALL


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_result_survives_the_round_trip(tmp_path: Path) -> None:
    result = RunResult("none", 0, {"epochs": 1}, "c", {"torch": "2"}, "diverged", [1.0, None], None, 2.5)
    save(tmp_path / "deep" / "result.json", result)
    assert load(tmp_path / "deep" / "result.json") == result
    assert load(tmp_path / "nothing.json") is None
