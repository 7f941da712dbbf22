"""Where the time goes from the end of a run to the first step of the next one, in one process.

Runs follow one another as in a worker: each method twice, the second time with another rate and seed. For every run
it prints the seconds of each phase, what torch compiled and why, and where Python was in the phases that took long.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from small_model import recipe_of
from torch._dynamo.utils import compilation_time_metrics, counters

from attentiondrop.bench.environment import environment
from attentiondrop.experiments.runs import execute as runs
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.runs.pool import set_aside
from attentiondrop.experiments.train import captured_step, changed_tensors, cuda_recorder, loop

#: Pairs of runs: the second one of each differs in its rate alone, or in nothing but its seed.
PAIRS = (
    ("none", "none"),
    ("hard(p=0.1,k=5)", "hard(p=0.2,k=5)"),
    ("blur(sigma_max=0.5)", "blur(sigma_max=0.7)"),
)
#: What torch times of a compilation; each contains the next ones.
COMPILING = {
    "_compile.compile_inner": "all",
    "bytecode_tracing": "dynamo",
    "create_aot_dispatcher_function": "AOTAutograd and inductor",
    "compile_fx_inner": "inductor",
    "fx_codegen_and_compile": "inductor without a cache hit",
}
#: Seconds between two looks at what Python does.
SAMPLING = 0.01


def main() -> int:
    """Run the pairs, print as it goes."""
    options = arguments().parse_args()
    end = time.monotonic() + options.seconds
    where = environment(options.device, options.commit)
    print(f"# Warm start: {where.device}, torch {where.torch}, commit {where.commit}, {where.date}", flush=True)
    phases, warm = Phases(options.device), []
    with tempfile.TemporaryDirectory() as folder, phases.watching():
        for number, pair in enumerate(PAIRS):
            if time.monotonic() > end:
                print(f"\n{pair[0]} and what follows: no time left of {options.seconds:.0f} s", flush=True)
                break
            for seed, method in enumerate(pair):
                one_run(method, 2 * number + seed, folder, phases, options)
            warm.append(f"{pair[1]} {phases.to_first_step:.2f} s")
    print(f"\nFrom the end of a run to the end of the first step of its warm successor: {', '.join(warm)}")
    return 0


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--depth", type=int, default=6, help="layers of the model")
    parser.add_argument("--seconds", type=float, default=60.0, help="no pair of runs begins later than this")
    parser.add_argument("--compile", action="store_true", help="also on a CPU, which takes long")
    parser.add_argument("--commit", help="where the source has no git")
    return parser


def one_run(method: str, seed: int, folder: str, phases: Phases, options: argparse.Namespace) -> None:
    """Do a run, and print what its beginning was made of."""
    recipe = recipe_of(options, "auto", epochs=1).to_dict()
    recipe["training"]["compile"] |= options.compile
    counters.clear()
    compilation_time_metrics.clear()
    phases.start()
    set_aside()  # as a worker does between two runs
    result = runs.execute(Job(recipe, method, seed, folder))
    whole = time.perf_counter() - phases.began
    state = result.error or result.capture or "not captured, on a CPU"
    print(f"\n## {method}: {phases.to_first_step:.2f} s to the end of the first step, {whole:.2f} s in all ({state})")
    for name, seconds in phases.seconds.items():
        print(f"  {seconds:7.3f} s  {name}")
    print(f"  compiled graphs: {counters['stats'].get('unique_graphs', 0)}; {compiling()}")
    for kind in ("inductor", "aot_autograd"):
        found = {name: count for name, count in counters[kind].items() if "cache" in name}
        if found:
            print(f"  {kind}: {found}")
    for reason in phases.reasons:
        print(f"  compiled again, since {reason}")
    looks = phases.samples.total()
    if phases.to_first_step > 1:
        print(f"  where Python was to the end of the first step, of {looks} looks:")
        for code, count in [one for one in phases.inside.most_common() if one[1] < 0.95 * looks][:24]:
            print(f"    {count:5d} in  {_place(code)}")
        for code, count in phases.samples.most_common(6):
            print(f"    {count:5d} at  {_place(code)}")
    sys.stdout.flush()


def compiling() -> str:
    """The seconds of each part of compiling."""
    found = {COMPILING[name]: sum(times) for name, times in compilation_time_metrics.items() if name in COMPILING}
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.items()) or "no time spent on compiling"


class Phases:
    """Seconds of each phase of a run up to its second step, without those of the phases inside."""

    def __init__(self, device: str) -> None:
        self._wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
        self._main = threading.get_ident()
        self.start()

    def start(self) -> None:
        """Begin anew: a run ended just now."""
        self.seconds: dict[str, float] = {}
        self.reasons: list[str] = []
        #: Where Python was: the innermost place, and every place around it.
        self.samples: Counter[CodeType] = Counter()
        self.inside: Counter[CodeType] = Counter()
        self._open = ["everything else"]
        self._steps = 0
        self.began = self._last = time.perf_counter()
        self.to_first_step = float("nan")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within, all of the places below are timed."""
        places: list[tuple[Any, str, str]] = [
            (runs, "data_for", "data"),
            (runs, "_begin", "request and environment"),
            (loop.Training, "__init__", "set up: the rest"),
            (loop, "make_accelerator", "set up: accelerator"),
            (loop, "initial_model", "set up: model"),
            (loop.Applied, "__init__", "set up: attach"),
            (torch.optim.AdamW, "__init__", "set up: optimiser"),
            (loop.Training, "resume", "resume"),
            (captured_step.CapturedStep, "_capture", "capture: the rest"),
            (changed_tensors.ChangedTensors, "copy", "capture: copy of the state"),
            (changed_tensors.ChangedTensors, "put_back", "capture: state put back"),
            (cuda_recorder.CudaRecorder, "record", "capture: recording"),
            (cuda_recorder, "_forget_workspaces", "capture: workspaces given back"),
            (gc, "collect", "garbage collection"),
        ]
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
        step, warm_up = loop.Training._set_step, cuda_recorder.CudaRecorder.warm_up
        done = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(done,), daemon=True)
        try:
            for owner, name, label in places:
                setattr(owner, name, self._timed(getattr(owner, name), label))
            loop.Training._set_step = self._stepping(step)  # type: ignore[method-assign]
            cuda_recorder.CudaRecorder.warm_up = self._passing(warm_up)  # type: ignore[method-assign]
            sampler.start()
            with self._reasons():
                yield
        finally:
            done.set()
            for owner, name, value in before:
                setattr(owner, name, value)
            loop.Training._set_step = step  # type: ignore[method-assign]
            cuda_recorder.CudaRecorder.warm_up = warm_up  # type: ignore[method-assign]

    def _note(self) -> None:
        """The time since the last note belongs to the phase that is open."""
        now = time.perf_counter()
        if self._steps < 2:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._last
        self._last = now

    @contextmanager
    def _phase(self, label: str) -> Iterator[None]:
        self._note()
        self._open.append(label)
        try:
            yield
        finally:
            # Neither while a step is recorded, nor where waiting is an error.
            if (
                torch.cuda.is_available()
                and torch.cuda.get_sync_debug_mode() == 0
                and not torch.cuda.is_current_stream_capturing()
            ):
                self._wait()
            self._note()
            self._open.pop()

    def _timed(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._phase(label):
                return function(*args, **kwargs)

        return timed

    def _passing(self, warm_up: Callable[..., None]) -> Callable[..., None]:
        def passing(recorder: Any, work: Callable[[], None], passes: int) -> None:
            number = 0

            def one_pass() -> None:
                nonlocal number
                number += 1
                with self._phase(f"capture: warm-up pass {number}"):
                    work()

            warm_up(recorder, one_pass, passes)

        return passing

    def _stepping(self, set_step: Callable[..., None]) -> Callable[..., None]:
        def stepping(training: Any, step: int) -> None:
            self._wait()
            self._note()
            self._steps += 1
            self._open[-1] = "first step: the rest, with its replay"
            if self._steps == 2:
                self.to_first_step = time.perf_counter() - self.began
            set_step(training, step)

        return stepping

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        """Within, what makes torch compile again is noted."""
        torch._logging.set_logs(recompiles=True)
        logger = logging.getLogger("torch._dynamo.guards.__recompiles")
        own, before = _Noting(self), (logger.handlers, logger.propagate)
        logger.handlers, logger.propagate = [own], False
        try:
            yield
        finally:
            logger.handlers, logger.propagate = before
            torch._logging.set_logs()

    def _sample(self, done: threading.Event) -> None:
        """Look again and again where Python is, up to the second step."""
        interval = sys.getswitchinterval()
        while not done.wait(SAMPLING):
            sys.setswitchinterval(10)  # the frames are those of a thread that must not go on meanwhile
            frame = sys._current_frames().get(self._main)
            around = list[CodeType]()
            while frame is not None:
                around.append(frame.f_code)
                frame = frame.f_back
            sys.setswitchinterval(interval)
            if around and self._steps < 2:
                self.samples[around[0]] += 1
                self.inside.update(set(around[1:]))


class _Noting(logging.Handler):
    """Keeps the first lines of each message about compiling again."""

    def __init__(self, phases: Phases) -> None:
        super().__init__()
        self._phases = phases

    def emit(self, record: logging.LogRecord) -> None:
        lines = [line.strip() for line in record.getMessage().splitlines()]
        failures = [line[:260] for line in lines if line.startswith("- ") and "/" in line[:8]]
        self._phases.reasons += failures or lines[:3]


def _place(code: CodeType) -> str:
    path = Path(code.co_filename)
    return f"{path.parent.name}/{path.name}:{code.co_name}"


if __name__ == "__main__":
    sys.exit(main())
