"""The command line: what a person types, reads and gets back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import attentiondrop
from attentiondrop.cli.main import main


def fresh(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter that finds the same library."""
    source = str(Path(attentiondrop.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source}
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, env=environment)


LOADED = """
import sys
from attentiondrop.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
heavy = {"torch", "timm", "sklearn", "rich", "torchmetrics", "transformers", "torchvision"} & set(sys.modules)
print(sorted(heavy), file=sys.stderr)
sys.exit(code)
"""


COMMANDS = (
    "compare",
    "train",
    "evaluate",
    "ablate",
    "report",
    "certify",
    "variance",
    "bench",
    "show",
    "recipes",
    "methods",
    "info",
)


@pytest.mark.parametrize(
    "args",
    [[], ["--help"], ["--version"], ["info"], ["recipes"], *([command, "--help"] for command in COMMANDS)],
    ids=" ".join,
)
def test_light_commands_load_no_framework(args: list[str]) -> None:
    done = fresh(LOADED, *args)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert done.stdout


WITHOUT = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from attentiondrop.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("blocked", "named"),
    [
        ("timm", "timm"),
        ("sklearn", "scikit-learn"),
        ("torch,timm,rich,yaml", "torch, timm, yaml, rich"),
    ],
)
def test_a_missing_extra_is_one_line(blocked: str, named: str, tmp_path: Path) -> None:
    done = fresh(WITHOUT, blocked, "compare", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    expected = f'attentiondrop compare needs {named}; install it with: pip install "attentiondrop[experiments]"\n'
    assert done.stderr == expected
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


def test_light_commands_work_without_any_extra() -> None:
    done = fresh(WITHOUT, "torch,timm,sklearn,rich", "info")
    assert (done.returncode, done.stderr) == (0, "")


def test_info_names_version_specs_and_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for part in (attentiondrop.__version__, "numpy ", "torch ", "device: ", "hard(p=0.1,k=5)", "oneof(...)"):
        assert part in text
    assert "Zero each of a row's `k` largest logits" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"attentiondrop {attentiondrop.__version__}\n"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--methods", "hrad"], "attentiondrop compare: unknown method 'hrad'"),
        (["--methods", "hard(p=7)"], "attentiondrop compare: cannot read spec 'hard(p=7)'"),
        (["--methods", "consistency"], "attentiondrop compare: method 'consistency(weight=0.5)'"),
        (
            ["--set", "training.epoch=3"],
            "attentiondrop compare: training.epoch: no such setting, did you mean 'epochs'?",
        ),
        (["digist"], "attentiondrop compare: recipe 'digist': no such recipe or .yaml file, did you mean 'digits'?"),
        (["none.yaml"], "attentiondrop compare: none.yaml: No such file or directory"),
        (["--size", "huge"], "attentiondrop compare: size 'huge' of digits: no such size."),
        (["--methods", "none", "none"], "attentiondrop compare: method 'none' is given twice"),
    ],
)
def test_a_wrong_request_is_one_line_before_anything_runs(
    args: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *args, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_traceback_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--methods", "hrad", "--traceback"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--seeds", "--workers"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "two"])
def test_counts_are_positive_integers(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compare", flag, value])
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_unwritable_folder_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["compare", "--out", str(tmp_path / "file" / "out")]) == 2
    line = capsys.readouterr().err
    assert line == f"attentiondrop compare: {tmp_path / 'file' / 'out'}: Not a directory\n"
    # The tests may run as root, who may write everywhere.
    monkeypatch.setattr("attentiondrop.experiments.files.whole_files.os.access", lambda *args: False)
    assert main(["compare", "--out", str(tmp_path)]) == 2
    line = capsys.readouterr().err
    assert line == f"attentiondrop compare: {tmp_path}: results cannot be written into this folder\n"


def test_what_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["compare", "--set", "training.device=cuda", "--out", str(tmp_path)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "attentiondrop compare: training.device 'cuda': torch sees no such device on this machine"
    assert main(["train", "cifar10", "--set", f"data.root={tmp_path}", "--out", str(tmp_path)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("attentiondrop train: data.root: expected") and "download" in last


def test_compare_ablate_report_and_evaluate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "data.limit=32", "training.epochs=1", "training.batch_size=16", "measure.probes=1"]
    command = ["compare", "--methods", "none", "hard(k=3)", "--seeds", "1", *settings]
    assert main(command) == 0
    first = capsys.readouterr()
    assert "hard(p=0.1,k=3)" in first.out
    assert "One seed is too few" in first.out
    assert f"report: {Path('runs') / 'digits-demo' / 'report.html'}" in first.out
    assert "none, seed 0: test accuracy" in first.err
    assert "2/2 epochs" in first.err
    assert "\x1b" not in first.err + first.out
    assert "hard(p=0.1,k=3)" in Path("runs/digits-demo/report.html").read_text()
    assert main(command) == 0
    second = capsys.readouterr()
    assert second.out == first.out
    assert "2 of 2 runs are finished already" in second.err
    assert main(["ablate", "--method", "hard", "--vary", "p=0.1,0.2", "k=3", "--seeds", "1", *settings]) == 0
    assert "hard(p=0.2,k=3)" in capsys.readouterr().out
    assert main(["report", "runs/digits-demo"]) == 0
    assert "report.md" in capsys.readouterr().out
    run = "runs/digits-demo/runs/hard_p=0.1_k=3/seed0"
    assert main(["evaluate", run, "--epsilon", "8/255", "--steps", "2", "--examples", "8", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "PGD linf 0.0314: accuracy" in text
    found = json.loads((Path(run) / "evaluation.json").read_text())
    stored = json.loads((Path(run) / "result.json").read_text())
    assert found["test"] == stored["test"] and found["robustness"]["examples"] == 8
    attack = ["--epsilon", "8/255", "--steps", "2", "--examples", "12", "--device", "cpu"]
    scores = []
    for choice in ([], ["--choice", "stratified"], ["--choice", "first"]):
        assert main(["evaluate", run, *attack, *choice]) == 0
        scores.append(json.loads((Path(run) / "evaluation.json").read_text())["robustness"]["accuracy"])
    assert scores[0] == scores[1] != scores[2]


def test_evaluate_takes_the_weights_that_the_run_was_tested_with(tmp_path: Path) -> None:
    settings = ["data.limit=64", "training.epochs=3", "training.batch_size=16", "measure.probes=0"]
    out, run = str(tmp_path / "out"), tmp_path / "out/runs/none/seed0"
    scores = {}
    for select in ("best", "last"):  # with the second one, the run is only scored again
        more = ["training.average_last=3", f"training.select={select}", "model.arguments.depth=1"]
        assert main(["train", "digits", "--out", out, "--set", *settings, *more]) == 0
        assert main(["evaluate", out, "--device", "cpu"]) == 0
        found = json.loads((run / "evaluation.json").read_text())
        scores[select] = found["test"]
        assert found["test"] == json.loads((run / "result.json").read_text())["test"] and found["weights"] == select
    assert main(["evaluate", out, "--device", "cpu", "--weights", "best"]) == 0
    assert json.loads((run / "evaluation.json").read_text())["test"] == scores["best"] != scores["last"]


@pytest.mark.parametrize("text", ["8/", "/255", "8/0", "x"])
def test_a_size_of_an_attack_that_is_no_number_is_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", "somewhere", "--epsilon", text])
    assert f"expected a number such as 0.03 or 8/255, received '{text}'" in capsys.readouterr().err


def test_the_folder_of_a_study_stands_for_its_only_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "data.limit=32", "training.epochs=1", "training.batch_size=16", "measure.probes=0"]
    out, place = str(tmp_path / "t1"), ["--device", "cpu"]
    assert main(["train", "digits", "--out", out, *settings]) == 0
    assert main(["evaluate", out, *place]) == 0
    run = tmp_path / "t1/runs/none/seed0"
    assert f"the same numbers as JSON: {run / 'evaluation.json'}" in capsys.readouterr().out
    assert (run / "evaluation.json").exists()
    assert main(["train", "digits", "--seed", "1", "--out", out, *settings]) == 0
    assert main(["evaluate", out, *place]) == 2
    other = tmp_path / "t1/runs/none/seed1"
    assert f"evaluate: {out}: expected one run, it has 2: {run}, {other}\n" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path), *place]) == 2
    assert f"{tmp_path}: expected the folder of a run, with a run.json" in capsys.readouterr().err


def test_a_run_does_not_store_where_its_data_is_and_says_how_to_name_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = np.zeros((20, 8, 8), np.uint8), np.arange(20) % 2
    file, out = tmp_path / "data.npz", str(tmp_path / "run")
    np.savez(file, x_train=images, y_train=labels, x_test=images, y_test=labels)
    settings = ["data.name=npz", f"data.root={file}", "training.epochs=1", "training.batch_size=8", "measure.probes=0"]
    assert main(["train", "digits", "--out", out, "--set", *settings]) == 0
    assert main(["evaluate", out, "--device", "cpu"]) == 2
    assert "(for a finished run, with --root FILE)" in capsys.readouterr().err
    assert main(["evaluate", out, "--device", "cpu", "--root", str(file)]) == 0


def test_a_run_that_fails_ends_with_status_2_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["data.limit=32", "training.epochs=1", "training.batch_size=64", "training.accumulate=64"]
    assert main(["train", "--set", *settings, "--out", str(tmp_path)]) == 2
    out = capsys.readouterr().out
    assert "none, seed 0: failed: training.accumulate: expected parts that divide 32 examples evenly" in out


def test_an_ablation_with_failed_runs_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["data.limit=32", "training.epochs=1", "training.batch_size=64", "training.accumulate=64"]
    request = ["--method", "hard", "--vary", "p=0.1", "--seeds", "1", "--workers", "1", "--set", *settings]
    assert main(["ablate", *request, "--out", str(tmp_path)]) == 2
    assert "1 of 1" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--vary", "p=0.1"], ["--method", "hard"], ["--method", "hard", "--vary", "p"]])
def test_half_an_ablation_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", *arguments]) == 2
    assert capsys.readouterr().err.startswith("attentiondrop ablate: vary: expected")


def test_a_run_leaves_what_tensorboard_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a module of this name, tensorboard does without TensorFlow, which it would spend seconds on.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    settings = ["data.limit=32", "training.epochs=1", "training.batch_size=16", "measure.probes=0"]
    assert main(["train", "--track", "tensorboard", "--set", *settings, "--out", str(tmp_path)]) == 0
    assert list(tmp_path.rglob("events.out.tfevents*"))


def test_an_interruption_says_how_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attentiondrop.experiments.studies.compare.run_jobs", interrupted)
    assert main(["compare", "--out", str(tmp_path)]) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "attentiondrop compare: interrupted; the same command continues where it stopped"


def test_an_error_of_the_system_without_a_name_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError("no room left")

    monkeypatch.setattr("attentiondrop.experiments.studies.plan.read_study", full)
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "attentiondrop report: no room left\n"


def test_a_very_long_error_is_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "x" * 5000]) == 2
    line = capsys.readouterr().err
    assert line.endswith("x ...\n") and line.count("x") > 900 and len(line) < 1100


def test_a_ray_cluster_has_workers_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attentiondrop.cli.recipes.require", lambda modules, extra: None)
    assert main(["compare", "digits", "--ray", "auto", "--workers", "2", "--dry-run"]) == 2
    assert "workers: expected 1 with --ray, which has workers of its own, received 2" in capsys.readouterr().err


def test_a_command_that_begins_again_does_not_promise_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attentiondrop.experiments.studies.plan.read_study", interrupted)
    assert main(["report", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "attentiondrop report: interrupted\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["evaluate", "RUN", "--steps", "5"], "epsilon: expected sizes of the attack, since --steps is given"),
        (["evaluate", "RUN", "--norm", "l2"], "epsilon: expected sizes of the attack, since --norm is given"),
        (["recipes", "--size", "demo"], "recipe: expected the name of a recipe, since --size is given"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_reader_that_stops_early_gets_no_complaint() -> None:
    command = f"{sys.executable} -m attentiondrop info | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("attentiondrop ") and not done.stderr


def test_the_torch_package_says_what_is_missing() -> None:
    code = "import sys; sys.modules['torch'] = None; import attentiondrop.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'attentiondrop.torch needs PyTorch; install it with: pip install "attentiondrop[torch]"' in done.stderr
