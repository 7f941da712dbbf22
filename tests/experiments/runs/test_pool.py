"""Several processes: killed commands, workers, torchrun, Ray, and two studies in one folder."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import forks
import learning_rank
import pytest

from attentiondrop import AttentionDropError
from attentiondrop.experiments.runs import pool as running
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.runs.pool import Where
from attentiondrop.experiments.runs.store import RESULT, Result, read_run
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.train.epoch_log import EPOCHS, STATE

from ..conftest import TINY

METHODS = ["none", "hard", "blur+consistency"]
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def command(*arguments: str, out: Path, changes: tuple[str, ...] = ()) -> list[str]:
    return [*arguments, "--set", *TINY, *changes, "--out", str(out)]


def study(out: Path) -> forks.Fork:
    """The comparison of these tests, in a process of its own."""
    return forks.command(*command("compare", "digits", "--methods", *METHODS, "--seeds", "2", out=out))


def outcomes(out: Path, methods: list[str], seeds: int = 1) -> dict[tuple[str, int], tuple[object, ...]]:
    """The results that must be equal however a study was run."""
    runs = {(method, seed): read_run(run_folder(out, method, seed)) for method in methods for seed in range(seeds)}
    assert all(run is not None and run.result is not None for run in runs.values())
    return {
        key: (run.result.test, run.result.validation, run.result.best_epoch, [epoch.train_loss for epoch in run.epochs])
        for key, run in runs.items()
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same study without interruption, in a separate process, where no other test can have an influence."""
    out = tmp_path_factory.mktemp("alone")
    status, text = study(out).wait()
    assert status == 0, text
    return outcomes(out, METHODS, 2)


def test_a_killed_comparison_is_finished_by_the_same_command(alone, tmp_path) -> None:
    out = tmp_path / "killed"
    chance = random.Random(0)
    reached: set[str] = set()
    for _ in range(4):
        process = study(out)
        limit = time.monotonic() + 60
        # Wait until something new is on disk, then kill the process at a random moment.
        while process.is_running() and time.monotonic() < limit:
            found = {str(path) for path in out.rglob("*") if path.name in (EPOCHS, STATE, RESULT)}
            if found - reached:
                reached |= found
                break
            time.sleep(0.005)
        time.sleep(chance.random() * 0.2)
        process.kill()
    status, text = study(out).wait()
    assert status == 0, text
    assert outcomes(out, METHODS, 2) == alone


def test_two_comparisons_on_one_folder_share_the_work(alone, tmp_path) -> None:
    out = tmp_path / "shared"
    done = [process.wait() for process in (study(out), study(out))]
    assert [status for status, _ in done] == [0, 0], done
    assert outcomes(out, METHODS, 2) == alone


@pytest.mark.slow
def test_workers_find_what_one_process_finds(alone, tiny, listener, tmp_path) -> None:
    compare(tiny, METHODS, 2, tmp_path / "workers", listener, where=Where(workers=2))
    assert outcomes(tmp_path / "workers", METHODS, 2) == alone
    assert listener.done[-1] == 2 * 3 * 2
    assert sum("accuracy" in line for line in listener.lines) >= 6


def children(process: int) -> set[int]:
    """The child processes, except the resource tracker of multiprocessing; Linux only."""
    return {
        int(text)
        for text in Path(f"/proc/{process}/task/{process}/children").read_text().split()
        if b"resource_tracker" not in Path(f"/proc/{text}/cmdline").read_bytes()
    }


def lives(process: int) -> bool:
    try:
        # A process that has ended, but whose status nobody has read, is a zombie.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(processes: set[int], seconds: float) -> bool:
    """Whether all processes end within this many seconds. The others are killed."""
    limit = time.monotonic() + seconds
    while left := [process for process in processes if lives(process)]:
        if time.monotonic() > limit:
            for process in left:
                os.kill(process, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True


linux = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for processes in /proc")

ORPHAN = """
import multiprocessing, sys, time
from attentiondrop.experiments.runs.orphans import end_with_parent
def work(): end_with_parent(); print(multiprocessing.current_process().pid, flush=True); time.sleep(600)
if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=work).start()
"""


@linux
def test_a_process_ends_with_its_parent(tmp_path) -> None:
    (tmp_path / "orphan.py").write_text(ORPHAN)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "orphan.py")], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    assert lives(worker)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()  # do not read to the end: a worker that is still running would keep the pipe open
    assert gone({worker}, seconds=5)


def test_every_worker_watches_its_parent_and_keeps_what_it_is_given(monkeypatch) -> None:
    called = []
    for name in ("_reports", "_pace"):
        monkeypatch.setattr(running, name, None)
    monkeypatch.setattr(running, "end_with_parent", lambda: called.append("watches"))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    running._prepare_worker(iter(()), 2, {}, "reports", "pace")
    assert called == ["watches"] and (running._reports, running._pace) == ("reports", "pace")


@linux
@pytest.mark.slow
def test_workers_stop_when_the_command_is_killed(tmp_path) -> None:
    long = command("compare", "digits", "--methods", "none", "hard", "--seeds", "1", "--workers", "2", out=tmp_path)
    long[long.index("training.epochs=2")] = "training.epochs=100000"
    call = [sys.executable, "-m", "attentiondrop", *long]
    process = subprocess.Popen(call, env=ONE_THREAD, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 120
        while len(list(tmp_path.rglob(EPOCHS))) < 2 and time.monotonic() < limit:
            assert process.poll() is None
            time.sleep(0.05)
        workers = children(process.pid)
        assert len(workers) == 2
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert gone(workers, seconds=30)


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
#: The launcher starts several processes only for GPUs. Ours find no GPU and run on the CPU.
ACCELERATE = [
    "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
    "--dynamo_backend=no",
]  # fmt: skip


@pytest.mark.parametrize(
    "launcher, parallel",
    [
        pytest.param(None, "ddp", id="ddp"),
        pytest.param(TORCHRUN, "ddp", id="torchrun-ddp", marks=pytest.mark.slow),
        pytest.param(TORCHRUN, "fsdp", id="torchrun-fsdp", marks=pytest.mark.slow),
        pytest.param(ACCELERATE, "ddp", id="accelerate-ddp", marks=pytest.mark.slow),
    ],
)
def test_two_processes_find_the_losses_of_one(tmp_path, job, launcher: list[str] | None, parallel: str) -> None:
    from attentiondrop.experiments.runs.execute import execute

    execute(job())
    one = read_run(job().folder)
    shared = command("train", "digits", out=tmp_path / "two", changes=(f"training.parallel={parallel}",))
    if launcher is None:
        done = forks.two_ranks(forks.run_command, *shared)
        assert [status for status, _ in done] == [0, 0], done
    else:
        launch = [sys.executable, *launcher, "-m", "attentiondrop"]
        found = subprocess.run([*launch, *shared], env=ONE_THREAD, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
    two = read_run(run_folder(tmp_path / "two", "none", 0))
    assert one is not None and two is not None and two.environment["processes"] == "2"
    assert [epoch.train_loss for epoch in two.epochs] == pytest.approx([e.train_loss for e in one.epochs], rel=1e-5)
    assert two.result.test["nll"] == pytest.approx(one.result.test["nll"], rel=1e-5)


def test_processes_of_a_run_wait_together_for_another_command(tmp_path, job) -> None:
    from attentiondrop.experiments.runs.execute import execute

    execute(job())
    again = dataclasses.replace(job(), out=str(tmp_path / "again"))
    done = forks.two_ranks(learning_rank.wait_for_another_command, job().folder, again)
    assert [status for status, _ in done] == [0, 0], done


def test_a_ray_cluster_of_two_nodes_finds_what_one_process_finds(alone, tiny, listener, tmp_path, monkeypatch) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        compare(tiny, METHODS, 2, tmp_path / "ray", listener, where=Where(ray=cluster.address))
    finally:
        cluster.shutdown()
    assert outcomes(tmp_path / "ray", METHODS, 2) == alone


def test_an_address_without_a_cluster_is_refused(tiny, listener, tmp_path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(AttentionDropError, match="ray: expected the address of a running cluster"):
        compare(tiny, METHODS, 1, tmp_path, listener, where=Where(ray="127.0.0.1:1"))


def test_the_request_of_a_run_is_whole_while_it_runs(tmp_path, job) -> None:
    from attentiondrop.experiments.runs.execute import execute

    seen = []
    execute(job(), lambda done: seen.append(json.loads((job().folder / "run.json").read_text())["method"]))
    assert seen == ["none", "none", "none"]


def test_lines_of_other_processes_are_heard(job, monkeypatch) -> None:
    result = Result("finished", 1.0, 2)

    def said(one, say) -> Result:
        say(f"{one.label}: training.capture: off, since it is a test")
        return result

    monkeypatch.setattr(running, "execute", said)
    assert running._elsewhere(job("none")) == (result, ["none, seed 0: training.capture: off, since it is a test"])
