"""Translation on a GPU: a captured step for each bucket, and the same search as on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.registry import find_task
from attentiondrop.experiments.tasks.translation.beam_search import beam_search
from attentiondrop.experiments.tasks.translation.encoder_decoder import EncoderDecoder
from attentiondrop.experiments.train import loop
from attentiondrop.experiments.train.loop import Training

pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SETTINGS = [
    "data.sentences=120",
    "data.vocabulary=280",
    "model.layers=2",
    "model.width=32",
    "model.heads=2",
    "training.epochs=3",
    "training.batch_size=640",
    f"training.learning_rate={2.0**-9}",
    "training.device=cuda",
    "measure.probes=0",
]


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("dropout(p=0.1)+hard(p=0.5)", []),
        ("blur(sigma_max=1.0)", ["training.kinds=[encoder, cross]", "training.accumulate=2"]),
        ("hard(p=0.5)+consistency", []),
        pytest.param("none", ["training.precision=bfloat16", "model.norm=pre"], marks=pytest.mark.slow),
    ],
)
def test_captured_steps_end_where_uncaptured_ones_do(tmp_path, monkeypatch, method: str, changes: list[str]) -> None:
    exact = loop.warmup_then_cosine
    monkeypatch.setattr(loop, "warmup_then_cosine", lambda *args: float(np.float32(exact(*args))))
    losses = []
    for capture in ("off", "on"):
        folder: Path = tmp_path / capture
        folder.mkdir()
        recipe = read_recipe("toy-translation", "demo", [*SETTINGS, *changes, f"training.capture={capture}"])
        data = find_task("translation").load_data(recipe.data)
        found = Training(recipe, read_method(method), 0, data, folder)
        losses.append([epoch.train_loss for epoch in found.run(lambda epoch: None)])
    assert found.captured == "captured"
    assert losses[1] == pytest.approx(losses[0], rel=1e-2 if "training.precision=bfloat16" in changes else 1e-3)


def test_the_search_finds_what_it_finds_on_the_cpu() -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(20, 2, 32, 32, 4).double().eval()
    source = torch.randint(3, 20, (6, 7))
    source[:, -1] = 2
    source[3:, 4:] = torch.tensor([2, 0, 0])
    here = beam_search(model, source, [12] * 6, 4, 0.6)
    there = beam_search(model.cuda(), source.cuda(), [12] * 6, 4, 0.6)
    assert [each.tokens for each in here] == [each.tokens for each in there]
    assert [each.score for each in here] == pytest.approx([each.score for each in there], rel=1e-5)
