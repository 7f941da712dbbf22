"""The pages of docs/evidence say what the committed result files say, and the recipes of the protocol can be read."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import shlex
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attentiondrop.cli.main import main
from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.config.recipe_files import read_recipe, shipped
from attentiondrop.experiments.methods.grids import candidates
from attentiondrop.experiments.methods.groups import expanded
from attentiondrop.experiments.tasks.classification.data import npz_file

ROOT = Path(__file__).parents[2]
WRITE = ROOT / "docs" / "evidence" / "write.py"
CONFIRM = ROOT / "docs" / "evidence" / "records" / "cifar10-20pct-confirm.tar.gz"
SCREEN = ROOT / "docs" / "evidence" / "records" / "cifar10-20pct-screen.tar.gz"


@pytest.fixture
def writer(docs_module) -> Any:
    """The program behind `make evidence`."""
    with warnings.catch_warnings(action="ignore"):
        yield docs_module("write")


def test_docs_and_result_files_agree(writer, capsys) -> None:
    assert writer.main(["--check"]) == 0, capsys.readouterr().out


def test_a_changed_result_is_noticed(writer, capsys, tmp_path, monkeypatch) -> None:
    study_pages = importlib.import_module("study_pages")
    (page, *others) = study_pages.PAGES
    results = Path(shutil.copytree(page.results, tmp_path / page.key)) / "results.csv"
    text = results.read_text(encoding="utf-8")
    assert text.count("none,0,runs,finished,0.6541,") == 1
    results.write_text(text.replace("none,0,runs,finished,0.6541,", "none,0,runs,finished,0.6641,"), encoding="utf-8")
    monkeypatch.setattr(study_pages, "PAGES", [dataclasses.replace(page, results=results.parent), *others])
    monkeypatch.setattr(writer, "protocol", dict)
    assert writer.main(["--check"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0].rpartition("/")[2] for line in said] == ["README.md", "cifar10-20pct-forest.svg"]


def test_a_changed_epoch_is_noticed(writer, capsys, tmp_path, monkeypatch, program) -> None:
    program.unpack(CONFIRM, tmp_path / "confirm")
    (run,) = (tmp_path / "confirm" / "runs").glob("hard_p=0.2_k=5/seed101")
    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    # The accuracy of epoch 60 falls just below the level, so the run is good in epoch 70.
    assert text.count('"accuracy": 0.68,') == 1
    (run / "metrics.jsonl").write_text(text.replace('"accuracy": 0.68,', '"accuracy": 0.66,'), encoding="utf-8")
    program.pack(tmp_path / "confirm", tmp_path / "confirm.tar.gz")
    monkeypatch.setattr(importlib.import_module("curves"), "RECORDS", tmp_path / "confirm.tar.gz")
    monkeypatch.setattr(writer, "protocol", dict)
    monkeypatch.setattr(writer, "pages", dict)
    assert writer.main(["--check"]) == 1
    assert "claims.md: differs" in capsys.readouterr().out


def test_results_that_no_page_shows_are_an_error(writer, tmp_path, monkeypatch) -> None:
    (tmp_path / "results" / "new").mkdir(parents=True)
    (tmp_path / "results" / "new" / "results.csv").touch()
    monkeypatch.setattr(importlib.import_module("study_pages"), "RESULTS", tmp_path / "results")
    with pytest.raises(SystemExit, match="results/new: expected an entry in PAGES"):
        writer.main(["--check"])


@pytest.mark.parametrize("name", [name for name in shipped() if name.startswith("evidence/")])
def test_every_method_of_a_study_has_as_many_trials(name: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        recipe = read_recipe(name)
        tuning = recipe.tuning
        counts = {
            text: len(candidates(text, tuning.trials, tuning.seed, tuning.grids, tuning.points))
            for text in expanded(recipe.methods)
        }
    # What the search chose has its settings from there.
    searched = {text for text in counts if "width=5)+consistency(weight=3.0)" in text or text == SEARCHED_IN_TEXT}
    assert {counts.pop(text) for text in searched} <= {1}
    assert set(counts.values()) == {max(1, tuning.trials)}
    assert recipe.tuning.points == 6 and tuning.seed == 1000


@pytest.fixture
def screen(program, tmp_path) -> Path:
    """The records of study 1, unpacked. The better a test score, the worse it is made: no choice may depend on it."""
    program.unpack(SCREEN, tmp_path / "screen")
    for file in (tmp_path / "screen" / "runs").rglob("result.json"):
        content = json.loads(file.read_text())
        content["test"]["accuracy"] = 1 - content["test"]["accuracy"]
        file.write_text(json.dumps(content))
    return tmp_path / "screen"


SEARCHED_IN_TEXT = "r-drop(weight=3.0,p=0.1)+blur(sigma_max=0.3,width=5)"
CONFIRMED = [
    "none",
    "longer(lr=0.5,decay=1.0,times=2)",
    "dropout(p=0.05)",
    "dropkey(p=0.05)",
    "r-drop(weight=0.6,p=0.1)",
    "r-drop(weight=0.0,p=0.05)",
    "hard(p=0.2,k=5)",
    "blur(sigma_max=0.5)",
    "blur(sigma_max=2.0)+consistency(weight=1.0)",
    "hard(p=0.5,k=5,fill=-inf)+consistency(weight=1.0)",
    "noise(sigma=1.0)+consistency(weight=1.0)",
    "hard(p=0.05,k=3)+consistency(weight=1.0)",
]


def test_the_rule_chooses_from_the_screen_by_validation_scores(program, screen, tmp_path, capsys) -> None:
    program.pack(screen, tmp_path / "other.tar.gz")
    for records in (SCREEN, tmp_path / "other.tar.gz"):
        assert program.main(["choose", str(records)]) == 0
        *reasons, words = capsys.readouterr().out.splitlines()
        assert shlex.split(words) == CONFIRMED
        assert [line.split(" (")[0] for line in reasons] == [
            "74.37  hard(fill=-inf)+consistency",
            "74.10  noise+consistency",
            "73.97  hard+consistency",
        ]
    assert program.main(["choose", str(tmp_path / "nothing")]) == 2
    assert "expected a file of records" in capsys.readouterr().err


def test_a_screen_that_is_not_finished_is_refused(program, screen) -> None:
    study = program.read_study(screen)
    (run,) = (screen / "runs").glob("dropkey_p=0.05/seed1")
    (run / "result.json").unlink()
    with pytest.raises(
        ArgumentError, match=r"expected a finished run of 'dropkey\(p=0.05\)', seed 1, found: unfinished"
    ):
        program.choice.choose(study)
    fewer = [entry for entry in study.comparison.methods if entry.name != "longer"]
    study = dataclasses.replace(study, comparison=dataclasses.replace(study.comparison, methods=fewer))
    with pytest.raises(ArgumentError, match=r"expected the method 'longer\(times=2\)'"):
        program.choice.choose(study)


def test_ties_go_to_the_cheaper_method(program) -> None:
    def names(*given: tuple[float, float, float | None]) -> str:
        each = [program.choice.Candidate(*2 * "abcd"[i], *one) for i, one in enumerate(given)]
        return "".join(one.name for one in program.choice.best(each)[0])

    # Mean, passes, GPU seconds. A difference of 0.1 is a tie, although floats make it a little more here.
    assert 70.12 - 70.02 > 0.1
    assert names((74.0, 2, None), (70.12, 2, None), (70.02, 1, None), (69.0, 1, None)) == "acb"
    assert names((74.0, 2, None), (73.11, 2, None), (73.0, 1, None), (72.0, 1, None)) == "abc"
    # A measured time counts only if all that are tied have one.
    assert names((74.0, 2, 5.0), (73.95, 1, 9.0), (73.0, 1, 1.0), (72.0, 1, 1.0)) == "abc"
    assert names((74.0, 2, 0.5), (73.95, 1, None), (73.0, 1, 1.0), (72.0, 1, 1.0)) == "bac"
    # Equal costs: the better one.
    assert names((73.95, 2, None), (74.0, 2, None), (73.9, 2, None), (73.8, 1, None)) == "bad"


def test_a_slice_that_is_killed_has_kept_its_records(program, screen, tmp_path, monkeypatch) -> None:
    then = tmp_path / "then.tar.gz"

    def compare(recipe: Any, methods: Any, seeds: Any, folder: Path, lines: Any, **others: Any) -> None:
        shutil.copytree(screen, folder, dirs_exist_ok=True)
        lines.progress("1 run", 1.0)
        assert not records.exists()  # not in every epoch
        monkeypatch.setattr(program, "PACK_EVERY", 0.0)
        lines.progress("1 run", 2.0)
        shutil.copy(records, then)
        raise KeyboardInterrupt

    records = tmp_path / "records.tar.gz"
    monkeypatch.setattr(program, "compare", compare)
    assert program.main(["run", "evidence/cifar10-20pct", "--size", "check", "--records", str(records)]) == 130
    program.unpack(then, tmp_path / "again")
    runs = [sorted(folder.rglob(program.RESULT)) for folder in (screen, tmp_path / "again")]
    assert runs[0] and len(runs[0]) == len(runs[1])


@pytest.mark.parametrize(("options", "is_timed"), [([], True), (["--no-costs"], False)])
def test_a_slice_times_the_steps_unless_it_is_told_not_to(program, tmp_path, monkeypatch, options, is_timed) -> None:
    timed: list[Any] = []
    monkeypatch.setattr(program, "compare", lambda *given, **options: None)
    monkeypatch.setattr(program, "read_study", lambda folder: None)
    monkeypatch.setattr(program, "summarise", lambda study: None)
    monkeypatch.setattr(program, "show_validation", lambda summary: None)
    monkeypatch.setattr(program, "costs", lambda *given: timed.append(given))
    records = ["--records", str(tmp_path / "records.tar.gz")]
    assert program.main(["run", "evidence/cifar10-20pct", "--size", "check", *records, *options]) == 0
    assert bool(timed) is is_timed


def test_the_page_tells_how_to_make_the_data_of_study_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block writes the first 1,000 images of each class in their order. Here, an image is its number."""
    page = (ROOT / "docs" / "evidence" / "README.md").read_text(encoding="utf-8")
    block = page.partition("```python\n")[2].partition("```")[0]
    datasets = pytest.importorskip("torchvision.datasets")
    labels = np.random.default_rng(0).integers(0, 10, 12_000)

    def published(root: str, train: bool, download: bool) -> SimpleNamespace:
        count = len(labels) if train else 100
        numbers = np.stack([np.arange(count) // 256**place % 256 for place in range(3)], axis=1).astype(np.uint8)
        return SimpleNamespace(data=numbers[:, None, None], targets=labels[:count].tolist())

    monkeypatch.setattr(datasets, "CIFAR10", published)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    source = npz_file.load("c10-20pct.npz")
    kept = source.train_images[:, :, 0, 0] @ [1, 256, 256**2]
    assert list(kept) == [number for number, label in enumerate(labels) if (labels[:number] == label).sum() < 1000]
    assert list(source.train_labels) == list(labels[kept]) and len(source.test_labels) == 100


def test_the_recipe_of_transfer_asks_for_pretrained_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.npz"
    images, labels = np.zeros((100, 32, 32, 3), np.uint8), np.arange(100) % 10
    np.savez(data, x_train=images, y_train=labels, x_test=images, y_test=labels)
    assert main(["compare", "evidence/transfer", "--set", f"data.root={data}", "--dry-run"]) == 2
    assert "model.checkpoint: expected a local folder or file with weights" in capsys.readouterr().err
