"""The examples for torch, run briefly."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import forks
import pytest
import torch.distributed as dist

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


def accuracy(output: str) -> float:
    return float(re.findall(r"accuracy (?:on [\d,]+ [a-z- ]+: )?([\d.]+)", output)[-1])


def test_fine_tuning_a_model_of_timm(run) -> None:
    pytest.importorskip("timm")
    output = run("timm_fine_tuning.py", "--epochs", "2")
    assert "blocks.*.attn  3 x Attention  hard(p=0.1,k=5)" in output
    assert re.findall(r"^(.*): accuracy 0\.\d+ on 696 images$", output, flags=re.MULTILINE) == [
        "plain fine-tuning",
        "hard(p=0.1,k=5)",
    ]


def test_the_trainer_of_transformers_with_consistency(run) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    output = run("transformers_trainer.py", "--epochs", "1")
    assert "2 attention sites" in output and "'divergence': " in output
    assert 0.4 < accuracy(output) <= 1


def test_lightning(run) -> None:
    pytest.importorskip("lightning")
    output = run("lightning_fit.py", "--epochs", "2")
    assert accuracy(output) > 0.3 and float(output.rpartition(" ")[2]) > 0


def test_the_vision_transformer_of_torchvision(run) -> None:
    pytest.importorskip("torchvision")
    output = run("torchvision_vit.py", "--epochs", "1")
    assert "2 x MultiheadAttention  blur(" in output and "2 x MultiheadAttention  hard(p=0.2,k=3)" in output
    assert len(re.findall(r"entropy [\d.]+ -> [\d.]+ nats", output)) == 4
    assert accuracy(output) > 0.1


def test_an_attention_layer_of_ones_own(run) -> None:
    assert accuracy(run("own_attention_layer.py", "--steps", "100")) > 0.4


def test_a_language_model(run) -> None:
    pytest.importorskip("transformers")
    output = run("language_model.py", "--steps", "30")
    perplexity = float(re.findall(r"perplexity ([\d.]+) of 29 letters", output)[0])
    assert 1 < perplexity < 15
    assert "\nclara " in output


def test_a_translation(run) -> None:
    pytest.importorskip("transformers")
    output = run("translation.py", "--steps", "25")
    assert "2 attention sites" in output and "encoder_attn  2 x" in output
    assert losses(output)[-1] < 3.2 and re.search(r"[\d.]+ % of words right", output)


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed package")
def test_fsdp2_with_two_processes() -> None:
    (status, said), (other, also) = forks.two_ranks(forks.run_file, str(EXAMPLES / "fsdp2.py"), "--steps", "3")
    assert status == other == 0, f"{said}\n{also}"
    assert "2 x MultiheadAttention  hard(p=0.1,k=5)" in said
    assert re.search(r"^2 processes: accuracy [\d.]+$", said, flags=re.MULTILINE)
