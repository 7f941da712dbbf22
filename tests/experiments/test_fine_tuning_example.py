"""The example of fine-tuning, run briefly: it makes its own checkpoint and begins with it."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "fine_tuning.py"


def test_the_example_fine_tunes_its_own_checkpoint(monkeypatch, capsys, tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), "--methods", "none", "--seeds", "1", "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", ["fine_tuning.py", *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("none, seed 0: test accuracy ") for line in lines) == 3
    tuned, scratch = (
        json.loads((tmp_path / name / "runs/none/seed0/run.json").read_text())["recipe"]
        for name in ("fine-tuned", "from-scratch")
    )
    assert tuned["model"]["checkpoint"] == str(tmp_path / "pretrained/runs/none/seed0")
    assert "checkpoint" not in scratch["model"] and tuned["data"] == scratch["data"]
    assert (tmp_path / "fine-tuned" / "report.html").exists()
