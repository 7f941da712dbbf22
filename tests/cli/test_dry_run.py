"""`--dry-run`: the runs, their number and an estimate of the time; nothing is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from attentiondrop.cli.main import main
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.runs.timed_steps import Pace, TooSlowError
from attentiondrop.experiments.studies import dry_run

SETTINGS = ["--set", "data.limit=32", "training.epochs=2", "training.batch_size=16", "measure.probes=1"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attentiondrop.experiments.runs.timed_steps.STEPS", 2)


def rows(text: str) -> dict[str, list[str]]:
    """Label -> runs, finished runs, epochs."""
    return {match[1]: list(match.groups()[1:]) for match in re.finditer(r"(?m)^ (\S.*?) +(\d+) +(\d+) +(\d+) *$", text)}


def times(text: str) -> dict[str, str]:
    """Label -> time of a run."""
    text = text.partition("of them to train.")[2]
    pattern = r"(?m)^ (\S.*?) {2,}([\d.]+ (?:s|min|h|days)(?: \*)?|not timed) *$"
    return {match[1]: match[2] for match in re.finditer(pattern, text)}


def test_a_comparison_with_tuning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--methods", "none", "hard", "longer(times=3)", "--trials", "2", "--seeds", "3"]
    assert main([*command, *SETTINGS, "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert rows(text) == {
        "none, tuning": ["2", "0", "2"],
        "hard, tuning": ["2", "0", "2"],
        "longer(times=3), tuning": ["2", "0", "6"],
        "none": ["3", "0", "2"],
        "hard": ["3", "0", "2"],
        "longer(times=3)": ["3", "0", "6"],
    }
    assert times(text).keys() == rows(text).keys()
    assert text.index("15 runs, 15 of them to train.") < text.index("Estimated time: about ")
    assert "Measured on this machine just now, up to " in text and "*" not in text
    assert "attacks" not in text and "beam search" not in text
    assert not (tmp_path / "out").exists()


def test_a_long_method_is_shown_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end was cut off, and what it has in brackets was taken for a style."""
    monkeypatch.setenv("COLUMNS", "60")
    command = ["compare", "--methods", "none", "dropkey(p=layers(values=[linear(start=0.0,end=0.1)]))", "--seeds", "1"]
    arguments = "model.arguments={depth: 1, embed_dim: 16, num_heads: 2}"
    assert main([*command, *SETTINGS, arguments, "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "[linear(" in text and "=0.1)])" in text and "\N{HORIZONTAL ELLIPSIS}" not in text


def test_sizes_of_texts_and_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    small = ["data.sentences=60", "data.block=16", "model.width=16", "training.epochs=1", "training.device=cpu"]
    assert main(["train", "toy-language", "--dry-run", "--set", *small, "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    found = re.search(
        r"Data: generated, blocks of 16 tokens: (\d+) for training, (\d+) for validation, (\d+) for the", text
    )
    assert found is not None and all(int(count) > 10 for count in found.groups())
    assert re.search(r"An epoch has \d+ steps\.\n", text) and re.search(r"Model: gpt2, [\d,]{5,} parameters\.", text)
    assert text.index("Data: ") < text.index("of them to train") < text.index("Model: ") < text.index("Estimated time")


def test_finished_runs_are_counted_and_give_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path)]
    assert main(["train", *SETTINGS, *out]) == 0
    before = sorted(tmp_path.rglob("*"))
    assert main(["train", "--method", "none", "--seed", "1", "--dry-run", *SETTINGS, *out]) == 0
    assert "1 run, 1 of them to train." in capsys.readouterr().out
    assert main(["compare", "--methods", "none", "--seeds", "2", "--dry-run", *SETTINGS, *out]) == 0
    text = capsys.readouterr().out
    assert rows(text)["none"] == ["2", "1", "2"] and times(text)["none"].endswith("*")
    assert "2 runs, 1 of them to train." in text
    assert "From finished runs in this folder" in text and "Measured" not in text
    assert main(["compare", "--methods", "none", "--seeds", "1", "--dry-run", *SETTINGS, *out]) == 0
    text = capsys.readouterr().out
    assert "1 run, 0 of them to train." in text and "Estimated" not in text
    assert sorted(tmp_path.rglob("*")) == before


def test_the_time_of_finished_runs_is_that_of_their_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path)]
    compare = ["compare", "--methods", "none", "--seeds", "5", "--dry-run", *out, *SETTINGS]
    for seed, seconds in enumerate((40.0, 60.0)):
        assert main(["train", "--seed", str(seed), *SETTINGS, *out]) == 0
        path = tmp_path / f"runs/none/seed{seed}/result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": seconds}))
    capsys.readouterr()
    assert main(compare) == 0
    text = capsys.readouterr().out
    # Three runs are left, of 50 s each.
    assert rows(text) == {"none": ["5", "2", "2"]} and times(text) == {"none": "50 s *"}
    assert "Estimated time: about 2.5 min.\n" in text and "Model: vit_digits" in text
    # Where two runs share the machine, a run takes another time.
    assert main([*compare, "--workers", "2"]) == 0
    text = capsys.readouterr().out
    assert "*" not in times(text)["none"] and "Measured on this machine just now" in text
    # Other settings of the evaluation: the finished runs are only scored again.
    assert main([*compare, "evaluation.batch_size=24"]) == 0
    text = capsys.readouterr().out
    assert rows(text) == {"none": ["5", "0", "2"]} and "5 runs, 3 of them to train. 2 finished runs are only" in text


def test_an_ablation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--method", "hard", "--vary", "p=0.1,0.2", "k=3", "--seeds", "2", "--workers", "2"]
    assert main(["ablate", *grid, *SETTINGS, "--out", str(tmp_path), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert set(rows(text)) == {"none", "hard(p=0.1,k=3)", "hard(p=0.2,k=3)"}
    assert "6 runs, 6 of them to train." in text and "2 runs at once." in text


@pytest.mark.parametrize(("workers", "threads"), [("1", None), ("2", 4), ("16", 1)])
def test_a_run_is_timed_with_the_cores_that_it_will_have(
    workers: str, threads: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[object] = []
    pace = Pace(start=1.0, step=1.0, validation=1.0, save=1.0, steps=1, parts=1.0)
    monkeypatch.setattr(dry_run, "pace_of", lambda job, given: used.append(given) or pace)
    monkeypatch.setattr(dry_run.os, "cpu_count", lambda: 8)
    assert (
        main(["compare", "--methods", "none", "--workers", workers, *SETTINGS, "--out", str(tmp_path), "--dry-run"])
        == 0
    )
    assert used == [threads]


@pytest.mark.parametrize("recipe", ["toy-language", "toy-translation", "toy-text-classification"])
def test_every_task_can_be_timed(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    small = {"toy-translation": "data.sentences=60"}.get(recipe, "data.sentences=40")
    assert main(["train", recipe, "--dry-run", "--set", small, "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "1 run, 1 of them to train.\n" in text and "\nEstimated time: about " in text
    assert ("beam search of the final test not included" in text) == (recipe == "toy-translation")


def test_what_cannot_run_is_refused_as_in_earnest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SETTINGS, "--out", str(tmp_path)]) == 0
    other = [*SETTINGS, "training.learning_rate=0.5"]
    assert main(["compare", "--methods", "none", "--dry-run", *other, "--out", str(tmp_path)]) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_the_parts_of_a_run_add_up() -> None:
    pace = Pace(start=100.0, step=1.0, validation=10.0, save=0.5, steps=7, parts=3.0)
    recipe = {"training": {"epochs": 4}, "measure": {"probes": 2, "batches": 5}}
    assert pace.of(Job(recipe, "none", 0, "out")) == 100 + 4 * (7 + 10 + 0.5) + 2 * 6 + 30


@pytest.mark.parametrize(("workers", "seconds"), [(1, 10.0), (2, 7.0), (9, 4.0)])
def test_workers_share_the_runs(workers: int, seconds: float) -> None:
    assert dry_run._shared([3.0, 1.0, 2.0, 4.0], workers) == seconds


def test_attacks_that_the_estimate_leaves_out_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Tuning comes first, and has no attacks.
    command = ["compare", "--methods", "hard", "--trials", "2", "--seeds", "1", "--dry-run", "--out", str(tmp_path)]
    assert main([*command, *SETTINGS, "evaluation.pgd_epsilons=[0.01]"]) == 0
    assert "scaled to the whole run; attacks of the final test not included." in capsys.readouterr().out


def test_the_runs_are_listed_before_anything_is_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[str] = []

    def slow(*_: object) -> Pace:
        before.append(capsys.readouterr().out)
        raise TooSlowError("it takes longer")

    monkeypatch.setattr(dry_run, "pace_of", slow)
    assert main(["compare", "--methods", "none", "hard", *SETTINGS, "--out", str(tmp_path), "--dry-run"]) == 0
    # After one method that is too slow, no other is tried.
    assert len(before) == 1 and rows(before[0]) == {"none": ["3", "0", "2"], "hard": ["3", "0", "2"]}
    text = capsys.readouterr().out
    assert times("of them to train." + text) == {"none": "not timed", "hard": "not timed"}
    assert "Estimated" not in text and "Measured" not in text
    assert "Not timed: 2 of 2, since a few steps take longer than 10 s here." in text


def test_on_a_cpu_nothing_is_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiler(*_: object, **__: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr("torch.compile", compiler)
    changes = ["training.compile=true", "training.compile_loss=true", "training.device=cpu"]
    assert main(["train", *SETTINGS, *changes, "--out", str(tmp_path), "--dry-run"]) == 0
    assert "just now, without compiling, up to " in capsys.readouterr().out
