"""`attentiondrop certify` and `attentiondrop variance`: what a person types, reads and gets back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from attentiondrop.cli import certify, main, variance
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.job import Job

SETTINGS = [
    "data.limit=96",
    "model.arguments={depth: 1, embed_dim: 16, num_heads: 2}",
    "training={epochs: 2, batch_size: 16, device: cpu}",
    "measure={probes: 2, batches: 2}",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    job = Job(read_recipe("digits", "demo", SETTINGS).to_dict(), "blur(sigma_max=0.5)", 0, str(out))
    execute(job)
    return job.folder


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "COMMANDS", (certify, variance))


def test_certify_prints_and_writes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["certify", str(run), "--draws", "2", "--prior-epochs", "1", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "blur(sigma_max=0.5): each bound holds with probability 0.95" in out
    assert "They assume:" in out and "i.i.d." in out and "Seeger's PAC-Bayes bound with KL = " in out
    found = json.loads((run / "certificate.json").read_text())
    names = [entry["name"] for entry in found["held_out"]["certificates"]]
    assert len(names) == 5 and all(name in out for name in names)
    # 96 examples and two epochs: some detours say nothing, and the table says that they do.
    vacuous = [entry["vacuous"] for entry in found["held_out"]["certificates"] + found["posterior"]["certificates"]]
    assert out.count(" vacuous ") == sum(vacuous) > 0
    # What is printed is rounded up, and so is still a bound.
    bounds = {entry["name"]: entry["value"] for entry in found["held_out"]["certificates"] if not entry["vacuous"]}
    assert bounds
    for name, value in bounds.items():
        shown = re.search(rf"{re.escape(name)} +([\d.]+) % ", out)
        assert shown is not None and 0 <= float(shown[1]) - 100 * value < 0.01
    alone = out.partition("the prior alone has the bound ")[2].split()[0]
    assert 0 <= float(alone) - 100 * found["posterior"]["prior_value"] < 0.01


def test_certify_into_another_file(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "c.json"
    assert main.main(["certify", str(run), "--draws", "2", "--prior-epochs", "0", "--out", str(path)]) == 0
    assert json.loads(path.read_text())["posterior"] is None
    assert f"as JSON: {path}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["certify", "variance"])
def test_nothing_of_a_table_is_cut_off(
    run: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a narrow terminal, 1.2e-03 was shown as 1.2e-, and text in brackets was taken for a style."""
    monkeypatch.setenv("COLUMNS", "40")
    request = json.loads((run / "run.json").read_text())
    method = "blur(sigma_max=layers(values=[linear(start=0.0,end=0.5)]))"
    renamed = json.dumps(request).replace("blur(sigma_max=0.5)", method)
    quick = {"certify": ["--prior-epochs", "0"], "variance": ["--examples", "16", "--method", "samples"]}[command]
    try:
        (run / "run.json").write_text(renamed)
        assert main.main([command, str(run), "--draws", "2", *quick, "--device", "cpu"]) == 0
    finally:
        (run / "run.json").write_text(json.dumps(request))
    out = capsys.readouterr().out
    assert method in out and "\N{HORIZONTAL ELLIPSIS}" not in out


def test_variance_prints_draws_and_writes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["variance", str(run), "--examples", "32", "--batches", "4", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "epoch 0" in out and "blocks.0" in out and "holds to rounding in every row (checked)" in out
    assert (run / "variance.png").stat().st_size > 10_000
    found = json.loads((run / "variance.json").read_text())
    assert found["checkpoints"][0]["method"] == "batches" and found["checkpoints"][0]["units"] == 4
    assert [entry["epoch"] for entry in found["while_training"]] == [1, 2]


def test_variance_from_two_mini_batches_has_no_interval(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["variance", str(run), "--examples", "32", "--batches", "2", "--device", "cpu"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("epoch")]
    assert rows and all(row[-1] == "-" for row in rows)


def test_variance_of_several_runs_in_one_picture(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "p" / "both.svg"
    options = ["--examples", "24", "--method", "samples", "--out", str(picture)]
    assert main.main(["variance", str(run), str(run), *options]) == 0
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["certify", "RUN", "--draws", "1"], "attentiondrop certify: draws: expected a number >= 2, received 1"),
        (["certify", "RUN", "--part", "validation"], "certify: part: expected 'test', received 'validation'"),
        (["certify", "RUN", "--delta", "0"], "delta: expected a number between 0 and 1, both excluded, received 0.0"),
        (["certify", "RUN", "--prior-epochs", "-1"], "prior_epochs: expected a number >= 0, received -1"),
        (["certify", "RUN", "--seed", "-1"], "attentiondrop certify: seed: expected a number >= 0, received -1"),
        (["certify", "RUN", "--seed", str(2**64)], "seed: expected an integer of at most 9223372036854775807"),
        (["variance", "RUN", "--seed", "-1"], "attentiondrop variance: seed: expected a number >= 0, received -1"),
        (["certify", "nowhere"], "nowhere: expected the folder of a run, with a run.json"),
        (["variance", "nowhere"], "nowhere: expected the folder of a run, with a run.json"),
        (["variance", "RUN", "--draws", "1"], "attentiondrop variance: draws: expected a number >= 2, received 1"),
        (["variance", "RUN", "--batches", "1"], "batches: expected a number >= 2, received 1"),
        (["variance", "RUN", "--out", "a.txt"], "out: expected a name that ends in .png, .pdf or .svg"),
    ],
)
def test_bad_requests(run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([str(run) if word == "RUN" else word for word in arguments]) == 2
    assert message in capsys.readouterr().err
