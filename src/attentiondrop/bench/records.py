"""One line of a result (what was timed, how it was checked, the numbers), and the CSV file of such lines."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..errors import AttentionDropError, bad_argument

TIMED, FAILED, SKIPPED = "timed", "FAILED CHECK", "cannot run"


@dataclass(frozen=True)
class Outcome:
    """The fields of every kind of result. Only a row with status `TIMED` has numbers."""

    row: str
    kind: str
    status: str
    path: str = ""
    check: str = ""
    error: float | None = None
    error_limit: float | None = None
    note: str = ""
    repeats: int = 0

    headings: ClassVar[tuple[str, ...]] = ("row", "status")

    def cells(self) -> list[str]:
        """What the table shows, under `headings`."""
        return [self.row, self.status]

    def remark(self) -> str:
        """One line that says why there is no timing, or another remark; often empty."""
        if self.status == TIMED:
            return f"{self.row}: {self.note}" if self.note else ""
        if not self.note and self.error is not None and self.error_limit is not None:
            found = f"relative error {self.error:.2g}, allowed {self.error_limit:.2g} ({self.check})"
            return f"{self.row}: {self.status}: {found}"
        return f"{self.row}: {self.status}: {self.note}"


@dataclass(frozen=True)
class AttentionOutcome(Outcome):
    """A row at a shape. Times are in milliseconds, memory in MiB; ratios are to the rows named as bases."""

    batch: int = 0
    heads: int = 0
    key_heads: int = 0
    length: int = 0
    size: int = 0
    causal: bool = False
    dtype: str = ""
    compiled: bool = False
    graph: bool = False
    forward_ms: float | None = None
    step_ms_20: float | None = None
    step_ms: float | None = None
    step_ms_80: float | None = None
    extra_mib: float | None = None
    plain_base: str = ""
    plain_ratio_20: float | None = None
    plain_ratio: float | None = None
    plain_ratio_80: float | None = None
    dropout_base: str = ""
    dropout_ratio_20: float | None = None
    dropout_ratio: float | None = None
    dropout_ratio_80: float | None = None

    headings = ("row", "path", "fwd ms", "fwd+bwd ms", "20 - 80 %", "extra MiB", "/ plain", "/ dropout")

    def cells(self) -> list[str]:
        """What the table shows, under `headings`."""
        if self.status != TIMED:
            return [self.row, self.path, self.status, *["-"] * (len(self.headings) - 3)]
        spread = f"{digits(self.step_ms_20)} - {digits(self.step_ms_80)}"
        return [
            self.row,
            self.path or "-",
            digits(self.forward_ms),
            digits(self.step_ms),
            spread,
            digits(self.extra_mib),
            ratio(self.plain_ratio_20, self.plain_ratio, self.plain_ratio_80),
            ratio(self.dropout_ratio_20, self.dropout_ratio, self.dropout_ratio_80),
        ]


@dataclass(frozen=True)
class VitOutcome(Outcome):
    """A row of the training step, in one mode; ratios are to the plain rows before and after it."""

    model: str = ""
    batch: int = 0
    dtype: str = ""
    mode: str = ""
    step_ms_20: float | None = None
    step_ms: float | None = None
    step_ms_80: float | None = None
    images_per_second: float | None = None
    ratio: float | None = None
    peak_gib: float | None = None
    memory_ratio: float | None = None

    headings = ("row", "path", "img/s", "/ plain", "step ms", "20 - 80 %", "peak GiB", "GiB / plain")

    def cells(self) -> list[str]:
        """What the table shows, under `headings`."""
        if self.status != TIMED:
            return [self.row, self.path, self.status, *["-"] * (len(self.headings) - 3)]
        return [
            self.row,
            self.path or "-",
            digits(self.images_per_second),
            ratio(self.ratio),
            digits(self.step_ms),
            f"{digits(self.step_ms_20)} - {digits(self.step_ms_80)}",
            digits(self.peak_gib),
            ratio(self.memory_ratio),
        ]


def digits(value: float | None) -> str:
    """A number with three significant digits, or all digits before the point: 0.123, 1.23, 12.3, 1234."""
    if value is None:
        return "-"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def ratio(*values: float | None) -> str:
    """The text of one ratio, or of a median with two quantiles."""
    if any(value is None for value in values):
        return "-"
    if len(values) == 1:
        return f"{values[0]:.2f}"
    low, middle, high = values
    return f"{middle:.2f} ({low:.2f} - {high:.2f})"


def append_csv(path: Path, outcomes: Sequence[Outcome], constants: Mapping[str, str]) -> None:
    """Append lines to a file, with the column names first if it is new; `constants` are the same in all lines."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for outcome in outcomes:
            values = dataclasses.asdict(outcome) | dict(constants)
            if new:
                writer.writerow(values)
                new = False
            writer.writerow([_plain(value) for value in values.values()])


def read_csv(path: Path) -> list[dict[str, str]]:
    """The lines of a file of attention timings; a damaged line is an error that names its number."""
    needed = {"row", "kind", "status", "length", "step_ms", "extra_mib"}
    lines: list[dict[str, str]] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if missing := sorted(needed - set(reader.fieldnames or ())):
                raise bad_argument("csv", f"a file of attention timings with columns {', '.join(missing)}", path.name)
            for line in reader:
                lines.append(line)
                numbers = [float(line[name] or 0) for name in ("length", "step_ms", "extra_mib")]
                if None in line or None in line.values() or not all(map(math.isfinite, numbers)):
                    raise ValueError("it is cut off or changed")
    except (ValueError, TypeError, csv.Error) as error:
        if isinstance(error, AttentionDropError):
            raise
        raise AttentionDropError(f"csv {path}: line {len(lines) + 1} cannot be read: {error}") from error
    return lines


def failed(outcomes: Iterable[Outcome]) -> bool:
    """Whether any row failed its check."""
    return any(outcome.status == FAILED for outcome in outcomes)


def _plain(value: Any) -> Any:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
