"""The runs of one process share compiled code: another seed or other rates compile nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.train.loop import Training

from ..conftest import TINY


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch):
    """Counts what is compiled, and compiles nothing; other tests of the process have left no code."""
    found, compile_module = CompileCounter(), nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compile_module(self, **options, backend=found))
    limit = torch._dynamo.config.recompile_limit
    torch.compiler.reset()
    yield found
    torch._dynamo.config.recompile_limit = limit
    torch.compiler.reset()


def losses(folder: Path, method: str, seed: int, compiled: bool) -> list[float | None]:
    folder.mkdir()
    changes = [*TINY, "model.arguments={depth: 1, embed_dim: 16, num_heads: 2}", f"training.compile={compiled}"]
    recipe = read_recipe("digits", "demo", [*changes, "training.epochs=1"])
    training = Training(recipe, read_method(method), seed, load_data(recipe.data), folder)
    return [epoch.train_loss for epoch in training.run(lambda epoch: None)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("methods", "compiled"),
    [
        (["none", "none"], 1),
        (["hard(p=0.2)", "hard(p=0.3)", "hard(p=linear(start=0.1,end=0.4))", "hard(p=0.1)"], 1),
        (["blur(sigma_max=0.5)", "blur(sigma_max=2.0)"], 1),
    ],
)
def test_rates_and_seeds_share_compiled_code(counter, tmp_path: Path, methods: list[str], compiled: int) -> None:
    for index, method in enumerate(methods):
        found = losses(tmp_path / f"compiled{index}", method, index, compiled=True)
        assert found == pytest.approx(losses(tmp_path / f"plain{index}", method, index, compiled=False), rel=1e-5)
    assert counter.frame_count == compiled


@pytest.mark.slow
def test_more_methods_than_torch_compiles_by_default_are_all_compiled(counter, tmp_path: Path) -> None:
    for k in range(1, 11):
        losses(tmp_path / str(k), f"hard(k={k})", 0, compiled=True)
    assert counter.frame_count == 10
