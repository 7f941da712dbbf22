"""What is kept of a run: one `result.json` in a folder of its own, written whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AttentionDropError
from .methods import Method

#: Raised when training or evaluation starts to mean something else: older results are then not reused.
FORMAT = 1


class DamagedRecordError(AttentionDropError):
    """A result file that is there but cannot be read."""


@dataclass(frozen=True)
class Metrics:
    """Test metrics of one run; accuracy and ECE are shares in [0, 1]."""

    accuracy: float
    ece: float
    nll: float


@dataclass(frozen=True)
class RunResult:
    """One finished run. `metrics` is None exactly when `status` is "diverged": the loss stopped being a number."""

    method: str
    seed: int
    recipe: dict[str, Any]
    data_checksum: str
    environment: dict[str, str]
    status: str
    train_loss: list[float | None]
    metrics: Metrics | None
    seconds: float
    format: int = FORMAT

    def changes(self, method: str, seed: int, recipe: dict[str, Any], data_checksum: str) -> list[str]:
        """In words, what is asked for now that differs from what this result was made with."""
        then = {**self.recipe, "method": self.method, "seed": self.seed, "format": self.format}
        now = {**recipe, "method": method, "seed": seed, "format": FORMAT}
        then["data checksum"], now["data checksum"] = self.data_checksum, data_checksum
        return [_change(key, then.get(key), now.get(key)) for key in now | then if now.get(key) != then.get(key)]


def make_writable(folder: Path) -> None:
    """Create `folder` if need be, and make sure before any training that results can be written into it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "results cannot be written into this folder", str(folder))


def result_path(out: Path, method: Method, seed: int) -> Path:
    """Where the result of one run belongs."""
    return out / method.slug / f"seed{seed}" / "result.json"


def save(path: Path, result: RunResult) -> None:
    """Write a result, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, dataclasses.asdict(result))


def load(path: Path) -> RunResult | None:
    """The stored result, None where there is none; one that cannot be read raises `DamagedRecordError`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        metrics = data.pop("metrics")
        result = RunResult(**data, metrics=None if metrics is None else Metrics(**metrics))
        if not _sound(result):
            raise TypeError("a field has the wrong type")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedRecordError(f"{path} cannot be read: {error}") from error
    return result


def write_json(path: Path, content: Any) -> None:
    """Write JSON so that a reader, or a crash, sees the old file or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=2, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _sound(result: RunResult) -> bool:
    numbers = [result.seconds, *(dataclasses.astuple(result.metrics) if result.metrics else ())]
    return (
        isinstance(result.recipe, dict)
        and result.status == ("diverged" if result.metrics is None else "finished")
        and all(isinstance(value, (int, float)) and math.isfinite(value) for value in numbers)
    )


def _change(key: str, then: Any, now: Any) -> str:
    return f"{key} differs" if isinstance(now, dict) or len(str(now)) > 20 else f"{key} {then} -> {now}"
