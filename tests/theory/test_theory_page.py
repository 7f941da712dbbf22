"""The page on theory, run as it stands."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import torch
from small_vit import digits, trained

PAGE = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")


def test_the_examples_run() -> None:
    bounds, models = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(bounds, {})
    lines = output.getvalue().splitlines()
    assert lines[0].startswith("no bound (paper gives nan)") and lines[2].startswith("risk <= 0.05")
    images, labels = digits()
    names: dict[str, Any] = {"torch": torch, "model": trained(), "images": images[600:700], "labels": labels[600:700]}
    with contextlib.redirect_stdout(output):
        exec(models, names)
    assert names["report"].stochastic.n == 100 and names["terms"].ratio > 0
