"""Training steps that take turns: rows with their times and their memory, or the reason why they cannot run."""

from __future__ import annotations

import csv
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import AttentionDropError
from .clock import Work, captured
from .environment import Environment
from .quantiles import Quantiles, ratios
from .rows import one_line

#: Takes so many steps.
Steps = Callable[[int], None]

#: Steps before a capture, as torch asks for.
_WARM_UP = 3


@dataclass
class StepRow:
    """One line of a table of training steps."""

    name: str
    method: str
    build: Callable[[], Steps]
    #: The names of the rows whose speed is 1, one for each column of ratios.
    bases: tuple[str, ...]
    #: What a round of this row trains on: images or tokens.
    units: float
    seconds: list[float] = field(default_factory=list)
    #: MiB that torch holds for it: weights, state of the optimiser, activations, memory of a graph.
    memory: float | None = None
    note: str = ""
    run: Steps | None = None

    @property
    def speed(self) -> Quantiles | None:
        """Units a second; None if it did not run."""
        return Quantiles.of([self.units / value for value in self.seconds]) if self.seconds else None

    def ratio(self, rows: Sequence[StepRow], base: str) -> Quantiles | None:
        """The speed as a ratio to that of the row `base` in the same round; None if one of them did not run."""
        other = next((row for row in rows if row.name == base), None)
        if other is None or not other.seconds or not self.seconds:
            return None
        found = ratios(other.seconds, self.seconds)
        share = self.units / other.units
        return Quantiles(*(share * value for value in found))


def warm_graph(step: Work) -> Work:
    """The step as a CUDA graph, after the warm-up that torch asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    return captured(step)


def repeated(step: Work) -> Steps:
    """So many steps, one after the other."""

    def steps(count: int) -> None:
        for _ in range(count):
            step()

    return steps


def take_rounds(rows: Sequence[StepRow], device: str, rounds: int, steps: int) -> None:
    """Build all rows, then time `rounds` rounds in which every row takes `steps` steps. Progress goes to stderr."""
    for row in rows:
        start = time.perf_counter()
        _prepare(row, device)
        _say(f"{row.name}: {row.note or 'ready'}, {time.perf_counter() - start:.1f} s")
    for number in range(rounds):
        # Another order in every other round: what runs after a fast row is not always the same.
        for row in rows if number % 2 else rows[::-1]:
            _measure(row, device, steps)
        _say(f"round {number + 1} of {rounds}")


def write_table(
    folder: Path, name: str, text: str, records: Sequence[Mapping[str, Any]], where: Environment
) -> tuple[Path, Path]:
    """Write the page `text` as Markdown, and all records as CSV; print the page. Returns both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    page, table = (folder / f"{name}-{where.slug}.{ending}" for ending in ("md", "csv"))
    page.write_text(text, encoding="utf-8")
    with table.open("w", newline="", encoding="utf-8") as file:
        about = {"device": where.device, "torch": where.torch, "commit": where.commit, "date": where.date}
        found = csv.DictWriter(file, [*records[0], *about])
        found.writeheader()
        found.writerows({**one, **about} for one in records)
    sys.stdout.write(f"{text}\n")
    return page, table


def _prepare(row: StepRow, device: str) -> None:
    """Build a row and let it run once; a row that cannot run keeps the reason."""
    before = _held(device)
    try:
        row.run = row.build()
        row.run(2)
        after = _held(device)
        if before is not None and after is not None:
            # What was cached while it compiled is gone now; two more steps show what it needs.
            row.run(2)
            more = _held(device, empty=False) - before  # type: ignore[operator]
            # A capture may give back what cuBLAS held for earlier rows. Then the difference is not this row's memory.
            row.memory = more if more > 0 else None
    except Exception as error:
        row.run, row.note = None, f"cannot run: {_in_one_line(error)}"
        gc.collect()


def _held(device: str, empty: bool = True) -> float | None:
    """MiB of the GPU that torch holds, without what it only caches if `empty`; None on a CPU."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    if empty:
        gc.collect()
        torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() / 2**20


def _measure(row: StepRow, device: str, steps: int) -> None:
    """The time of one round, the host's part included: that is what a user waits for."""
    if row.run is None:
        return
    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else nullcontext
    try:
        wait()
        start = time.perf_counter()
        row.run(steps)
        wait()
        row.seconds.append(time.perf_counter() - start)
    except Exception as error:
        row.run, row.seconds, row.note = None, [], f"failed in a round: {_in_one_line(error)}"


def _in_one_line(error: Exception) -> str:
    """The message, without folders of this machine; errors that are not ours begin with their class."""
    text = one_line(str(error))
    return text if isinstance(error, AttentionDropError) else f"{type(error).__name__}: {text}"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
