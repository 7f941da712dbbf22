"""The page on evaluation, run as it stands; what importing the package loads."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def test_the_examples_run_and_the_masked_model_is_found_out() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 4
    pixels = torch.rand(64, 3, 4, 4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 7))
    names: dict[str, Any] = {"torch": torch, "model": model, "pixels": pixels, "normalise": lambda x: (x - 0.5) / 0.25}
    names["images"] = names["normalise"](pixels)
    names["labels"] = model(names["images"]).argmax(-1)
    names["validation_logits"] = torch.tensor([[4.0, 0.0]] * 3 + [[0.0, 4.0]])
    names["validation_labels"] = torch.zeros(4, dtype=torch.int64)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        for block in blocks:
            exec(block, names)
    assert names["report"].sound, names["report"].notes
    assert output.getvalue().startswith("[0.0, 0.0078") and "True []" in output.getvalue()
    assert names["result"].ece == names["calibration_error"](names["logits"], names["labels"])
    assert names["result"].accuracy == 1.0 and sum(names["diagram"].count) == 64
    assert round(names["temperature"], 3) == 3.641  # three of four are right: 4 / log 3
    assert (names["worse"] - pixels).abs().max() <= 8 / 255 + 1e-6


def test_importing_loads_torch_alone() -> None:
    others = ["torchmetrics", "torchvision", "timm", "transformers", "sklearn", "attentiondrop.experiments"]
    code = f"import sys, attentiondrop.evaluation; sys.exit(', '.join(x for x in {others} if x in sys.modules) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True)
