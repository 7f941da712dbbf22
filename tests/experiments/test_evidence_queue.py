"""`benchmarks/evidence.py queue`: several studies in their order, each from its records, as long as there is time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods.groups import expanded
from attentiondrop.experiments.runs.store import RESULT
from attentiondrop.experiments.studies.plan import ABLATION, COMPARISON
from attentiondrop.experiments.train.epoch_log import LAST

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "evidence" / "records"
RECIPE = {
    "data": {"name": "npz", "validation": 0.25},
    "model": {
        "name": "vit_tiny_patch16_224",
        "patch_size": 4,
        "arguments": {"depth": 1, "embed_dim": 16, "num_heads": 2},
    },
    "training": {"epochs": 1, "batch_size": 16, "device": "cpu"},
    "measure": {"probes": 0},
    "methods": ["none", "hard"],
    "seeds": 1,
    "ablations": {"hard": {"p": [0.1, 0.3, 0.5]}},
}


@pytest.fixture
def go_on(program: Any, tmp_path: Path) -> Callable[..., int]:
    """Runs a queue of studies on toy images, whose recipe is `tiny`."""
    images, labels = np.random.default_rng(0).integers(0, 255, (64, 8, 8, 3), np.uint8), np.arange(64) % 4
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "toy.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")

    def run(studies: list[dict[str, Any]], *options: str, costs: bool = False) -> int:
        common = {"recipe": str(tmp_path / "tiny.yaml"), "data": "toy.npz"}
        (tmp_path / "queue.yaml").write_text(yaml.safe_dump([common | one for one in studies]), encoding="utf-8")
        places = ["--file", tmp_path / "queue.yaml", "--data", tmp_path / "data", "--records", tmp_path / "records"]
        rest = ["--workers", "1", *([] if costs else ["--no-costs"])]
        status: int = program.main(["queue", *options, *map(str, places), *rest])
        return status

    return run


def plan_in(program: Any, file: Path, folder: Path) -> dict[str, Any]:
    program.unpack(file, folder)
    content: dict[str, Any] = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))
    return content


def test_studies_run_in_order_and_the_same_command_goes_on(program, go_on, tmp_path, capsys) -> None:
    studies = [
        {"name": "later", "waits_for": "something else"},
        {"name": "weights", "methods": ["none"], "keeps": "none.safetensors"},
        {"name": "transfer", "methods": ["none"], "checkpoint": "none.safetensors"},
    ]
    assert go_on(studies, "--list") == 2  # the last one has nothing to begin with yet
    said = capsys.readouterr()
    assert "== weights: 0 of 1 runs have ended" in said.out
    assert "== transfer: model.checkpoint: expected a local folder or file" in said.err
    assert not (tmp_path / "records").exists()
    assert go_on(studies) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("== ")]
    assert heads == [
        "== later: left out, it waits for something else",
        "== weights: 0 of 1 runs have ended",
        "== transfer: 0 of 1 runs have ended",
    ]
    weights = (tmp_path / "data" / "none.safetensors").read_bytes()
    assert go_on(studies) == 0  # nothing is trained, so there are no weights to keep: those of before stay
    assert "== transfer: 1 of 1 runs have ended" in capsys.readouterr().out
    assert (tmp_path / "data" / "none.safetensors").read_bytes() == weights
    plan = plan_in(program, tmp_path / "records" / "transfer.tar.gz", tmp_path / "seen")
    assert plan["command"] == f"benchmarks/evidence.py run {tmp_path / 'tiny.yaml'} --methods none"


def test_weights_that_were_lost_are_an_error(go_on, tmp_path, capsys) -> None:
    studies = [{"name": "weights", "methods": ["none"], "keeps": "none.safetensors"}]
    assert go_on(studies) == 0
    (tmp_path / "data" / "none.safetensors").unlink()
    assert go_on(studies) == 2
    assert "found 0. Without its records, it is trained again" in capsys.readouterr().err


def test_new_weights_take_the_place_of_old_ones_and_two_runs_have_no_weights_to_keep(program, tmp_path: Path) -> None:
    file, folder = tmp_path / "kept.safetensors", tmp_path / "study"
    file.write_bytes(b"old")
    for seed in (0, 1):
        run = folder / "runs" / "none" / f"seed{seed}"
        run.mkdir(parents=True)
        (run / LAST).write_bytes(b"new")
        if seed == 0:
            program.keep_weights(folder, file)
    assert file.read_bytes() == b"new"
    with pytest.raises(ArgumentError, match="expected one run that has just been trained, found 2"):
        program.keep_weights(folder, file)


def test_ablations_are_counted_and_run_as_such(program, go_on, tmp_path, capsys) -> None:
    studies = [{"name": "points", "ablate": True}]
    assert go_on(studies) == 0 and go_on(studies, "--list") == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("== ")]
    assert heads == [f"== points: {ended} of 4 runs have ended" for ended in (0, 4)]
    program.unpack(tmp_path / "records" / "points.tar.gz", tmp_path / "seen")
    assert not (tmp_path / "seen" / COMPARISON).exists()
    given = json.loads((tmp_path / "seen" / ABLATION).read_text(encoding="utf-8"))["command"]
    assert given == f"benchmarks/evidence.py run {tmp_path / 'tiny.yaml'} --ablate"


def test_a_run_that_has_not_ended_does_not_count(program, go_on, tmp_path, capsys) -> None:
    assert go_on([{"name": "one"}]) == 0
    (one,) = program.read_queue(tmp_path / "queue.yaml")
    program.unpack(tmp_path / "records" / "one.tar.gz", tmp_path / "seen")
    recipe = one.read(tmp_path / "data", [])
    assert program.progress(one, recipe, tmp_path / "seen") == (2, 2)
    next((tmp_path / "seen").glob(f"runs/hard*/*/{RESULT}")).unlink()
    assert program.progress(one, recipe, tmp_path / "seen") == (1, 2)


def test_the_size_belongs_to_the_recipe_and_to_the_command(program) -> None:
    one = program.Queued("noise", "evidence/cifar10-20pct", "images.npz", size="noise")
    recipe = one.read(Path("DATA"), ["seeds=3"])
    assert (recipe.data.label_noise, recipe.data.root, recipe.seeds) == (0.4, str(Path("DATA") / "images.npz"), 3)
    assert one.command([]) == "benchmarks/evidence.py run evidence/cifar10-20pct --size noise"


def test_each_study_has_the_time_that_the_others_left(program, go_on, monkeypatch) -> None:
    left: list[float] = []
    monkeypatch.setattr(program, "slice_of", lambda recipe, folder, options, *given: left.append(options.minutes) or 0)
    assert go_on([{"name": "one"}, {"name": "two"}]) == 0
    assert 9 > left[0] > left[1]


def test_a_study_that_fails_does_not_stop_the_others_and_only_the_named_ones_run(go_on, tmp_path, capsys) -> None:
    studies = [{"name": "broken", "data": "nothing.npz"}, {"name": "fine", "methods": ["none"]}, {"name": "left"}]
    assert go_on(studies, "broken", "fine") == 2
    said = capsys.readouterr()
    assert "== broken: " in said.err and "nothing.npz" in said.err
    assert sorted(file.name for file in (tmp_path / "records").iterdir()) == ["fine.tar.gz"]
    assert go_on(studies, "fin") == 2
    assert "names: expected studies of" in capsys.readouterr().err


def test_what_is_stopped_keeps_its_row_and_gets_no_more_runs(program, go_on, tmp_path, capsys) -> None:
    assert go_on([{"name": "one"}]) == 0
    assert go_on([{"name": "one", "methods": ["none", "blur"], "stopped": ["hard"]}], "--set", "seeds=2") == 0
    assert "== one: 1 of 4 runs have ended" in capsys.readouterr().out  # that of `hard` does not count
    plan = plan_in(program, tmp_path / "records" / "one.tar.gz", tmp_path / "seen")
    assert [entry["name"] for entry in plan["methods"]] == ["none", "blur", "hard"]
    runs = sorted(file.parent.name for file in (tmp_path / "seen" / "runs").glob("*/*/result.json"))
    assert runs == ["seed0", "seed0", "seed0", "seed1", "seed1"]
    assert go_on([{"name": "one", "stopped": ["dropkey"]}]) == 2
    expected = "one: stopped: expected methods of its records (none, blur, hard), received ['dropkey']"
    assert expected in capsys.readouterr().err


def test_some_methods_go_on_when_the_others_are_done(program, go_on, tmp_path, monkeypatch, capsys) -> None:
    """The time that the others took is theirs no more."""
    real, slices = program.slice_of, []

    def slice_of(recipe, folder, options, command, stopped):
        entries = [entry.name for entry in stopped(folder)]
        slices.append((options.methods, options.no_costs, options.minutes, entries, command))
        return real(recipe, folder, options, command, stopped)

    monkeypatch.setattr(program, "slice_of", slice_of)
    monkeypatch.setattr(program, "costs", lambda *given: None)
    study = {"name": "one", "methods": ["none", "blur", "hard"], "later": ["none"]}
    assert go_on([study], costs=True) == 0
    first, second = slices
    assert first[:2] == (["blur", "hard"], True) and first[3] == []
    assert second[:2] == (["none", "blur", "hard"], False) and second[3] == []
    assert second[2] < first[2] and first[4] == second[4] and "--methods none blur hard" in first[4]
    assert go_on([study], "--set", "seeds=2") == 0
    assert slices[2][3] == ["none"]  # it keeps its row
    plan = plan_in(program, tmp_path / "records" / "one.tar.gz", tmp_path / "seen")
    assert [entry["name"] for entry in plan["methods"]] == ["none", "blur", "hard"]
    said = [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines() if "seed 1:" in line]
    assert [line.partition(",")[0] for line in said][-1] == "none"


def test_where_the_time_ends_among_the_first_methods_the_others_wait(program, go_on, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(program, "slice_of", lambda recipe, folder, options, *given: asked.append(options.methods) or 3)
    assert go_on([{"name": "one", "methods": ["none", "blur"], "later": ["none"]}]) == 3
    assert asked == [["blur"]]


def test_only_methods_of_the_study_can_go_on_later(go_on, capsys) -> None:
    assert go_on([{"name": "one", "methods": ["none", "blur"], "later": ["hard"]}]) == 2
    assert "one: later: expected methods of the study (none, blur), received ['hard']" in capsys.readouterr().err


@pytest.mark.parametrize("of_study", [False, True])
def test_steps_are_timed_unless_the_study_needs_no_times(go_on, program, monkeypatch, of_study: bool) -> None:
    timed: list[Any] = []
    monkeypatch.setattr(program, "costs", lambda *given: timed.append(given))
    studies = [{"name": "one", "methods": ["none"], "no_costs": of_study}]
    assert go_on(studies, costs=True) == 0
    assert len(timed) == (not of_study)
    assert go_on(studies) == 0  # with --no-costs
    assert len(timed) == (not of_study)


def test_runs_of_a_method_that_has_left_do_not_count(go_on, tmp_path, capsys) -> None:
    assert go_on([{"name": "one"}]) == 0
    assert go_on([{"name": "one", "methods": ["none"]}], "--list") == 0
    assert "== one: 1 of 1 runs have ended" in capsys.readouterr().out


def test_the_recorded_command_has_the_settings_that_were_given(program, go_on, tmp_path) -> None:
    assert go_on([{"name": "one", "methods": ["none"]}], "--set", "seeds=1", "training.batch_size=8") == 0
    given = plan_in(program, tmp_path / "records" / "one.tar.gz", tmp_path / "seen")["command"]
    assert given.endswith("tiny.yaml --set seeds=1 training.batch_size=8 --methods none")


def test_without_time_no_study_begins(program, go_on, tmp_path, monkeypatch) -> None:
    assert go_on([{"name": "one"}, {"name": "two"}], "--minutes", "0") == 3
    assert go_on([{"name": "one"}, {"name": "two"}], "--minutes", "0", "--list") == 0
    assert not (tmp_path / "records").exists()
    monkeypatch.setattr(program, "slice_of", lambda *given: 3)  # the time was over within the first one
    begun: list[str] = []
    real = program.go_on
    monkeypatch.setattr(program, "go_on", lambda one, *given: begun.append(one.name) or real(one, *given))
    assert go_on([{"name": "one", "keeps": "none.safetensors"}, {"name": "two"}]) == 3  # there are no weights yet
    assert begun == ["one"]


@pytest.mark.parametrize(
    ("studies", "message"),
    [
        ({"name": "one"}, "expected a list of studies"),
        ([{"name": "one", "recipe": "digits", "data": "x", "seeds": 3}], "study 1.seeds: no such setting"),
        ([{"name": "one", "recipe": "digits", "data": "x"}] * 2, r"another one for each study, received \['one'\]"),
    ],
)
def test_a_wrong_queue_is_refused(program, tmp_path: Path, studies: Any, message: str) -> None:
    (tmp_path / "queue.yaml").write_text(yaml.safe_dump(studies), encoding="utf-8")
    with pytest.raises(ArgumentError, match=message):
        program.read_queue(tmp_path / "queue.yaml")


def test_the_queue_of_this_repository_can_be_run(program, tmp_path: Path) -> None:
    """Its recipes and methods can be read, and what is stopped has runs. A study that is complete leaves it."""
    studies = program.read_queue(program.QUEUE)
    for one in studies:
        recipe = read_recipe(one.recipe, one.size)
        assert expanded(one.methods or recipe.methods)
        if one.ablate:
            assert recipe.ablations
        assert one.first(recipe)
        if one.stopped:
            program.unpack(RECORDS / f"{one.name}.tar.gz", tmp_path / one.name)
            assert [entry.name for entry in one.without(tmp_path / one.name)] == one.stopped
            assert not set(one.stopped) & set(expanded(one.methods or recipe.methods))
    kept = {one.keeps: place for place, one in enumerate(studies) if one.keeps}
    begun = {one.checkpoint: place for place, one in enumerate(studies) if one.checkpoint}
    assert begun.keys() == kept.keys() and all(begun[file] > kept[file] for file in kept)


def test_the_claims_know_which_methods_are_stopped(program, tmp_path: Path, docs_module: Callable[[str], Any]) -> None:
    """Otherwise a study would never be complete, and its claims would wait for runs that nobody makes.

    They know it as well when the study is complete and has left the queue.
    """
    stopped = {}
    for one in program.read_queue(program.QUEUE):
        if one.stopped:
            program.unpack(RECORDS / f"{one.name}.tar.gz", tmp_path / one.name)
            stopped[one.name] = {entry.method for entry in one.without(tmp_path / one.name)}
    known = {name: set(labels) for name, labels in docs_module("other_claims").STOPPED.items()}
    assert stopped == {name: known.get(name) for name in stopped}
