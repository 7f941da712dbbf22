"""The examples for torch, run briefly."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def printed(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return printed


def losses(output: str) -> list[float]:
    return [float(text) for text in re.findall(r"loss ([\d.]+)", output)]


def test_retrieval_with_a_dual_encoder(run) -> None:
    output = run("clip_retrieval.py", "--steps", "45")
    assert "encoders.*.layers.*.self_attn  4 x MultiheadAttention  hard(p=0.1,k=5)  encoder" in output
    assert losses(output)[-1] < losses(output)[0] - 0.5
    # Chance would be about 0.01 and 0.04: captions repeat.
    one, five = (float(text) for text in re.findall(r"@\d ([\d.]+)", output))
    assert one > 0.03 and five > 0.1


def test_answers_by_cross_attention(run) -> None:
    output = run("cross_attention.py", "--steps", "50")
    assert "2 attention sites" in output and "decoder.layers.*.multihead_attn  2 x MultiheadAttention" in output
    assert losses(output)[-1] < losses(output)[0]
    assert float(output.rpartition(":")[2]) > 0.3
    assert "3 attention sites" in run("cross_attention.py", "--steps", "1", "--kinds", "encoder", "decoder")
