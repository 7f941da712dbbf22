"""The runs of one process share compiled code: another seed or other rates compile nothing."""

from __future__ import annotations

import copy
import gc
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.config.schema import TrainingSettings
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.train.accelerator import make_accelerator
from attentiondrop.experiments.train.compiled_code import compile_calls
from attentiondrop.experiments.train.loop import Training

from ..conftest import TINY


def prepared(precision: str) -> tuple[nn.Module, nn.Module]:
    """A model compiled for a run, and a copy from before that."""
    model = nn.Linear(3, 2)
    twin = copy.deepcopy(model)
    compile_calls(model)
    accelerator = make_accelerator(TrainingSettings(precision=precision, device="cpu"))  # type: ignore[arg-type]
    return accelerator.prepare(model), accelerator.prepare(twin)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_next_run_compiles_nothing(compilations: CompileCounter, precision: str) -> None:
    x = torch.randn(4, 3)
    for _ in range(3):
        model, twin = prepared(precision)
        assert torch.equal(model(x), twin(x)) and model(x).dtype == torch.float32
        del model, twin
        gc.collect()  # as a worker does between two runs
    assert compilations.frame_count == 1


def test_only_calls_of_the_model_itself_run_compiled_code(compilations: CompileCounter) -> None:
    """Not its `forward`, which evaluation calls, and not a copy."""
    model, twin = prepared("bfloat16")
    x, seen = torch.randn(4, 3), list[Tensor]()
    model.register_forward_hook(lambda module, args, output: seen.append(output))
    assert torch.equal(model.forward(x), twin(x)) and not seen
    other = copy.deepcopy(model)
    assert torch.equal(other(x), twin(x))
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    assert torch.equal(other(x), twin(x))  # it has weights of its own
    assert compilations.frame_count == 0
    assert not model(x).any() and seen
    assert compilations.frame_count == 1
    with pytest.raises(RuntimeError):
        model(torch.randn(4, 5))
    before = compilations.frame_count
    model.forward(torch.randn(7, 3))
    assert compilations.frame_count == before


def losses(folder: Path, method: str, seed: int, compiled: bool, *more: str) -> list[float | None]:
    folder.mkdir()
    changes = [*TINY, "model.arguments={depth: 1, embed_dim: 16, num_heads: 2}", f"training.compile={compiled}"]
    recipe = read_recipe("digits", "demo", [*changes, "training.epochs=1", *more])
    training = Training(recipe, read_method(method), seed, load_data(recipe.data), folder)
    return [epoch.train_loss for epoch in training.run(lambda epoch: None)]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "methods",
    [
        ["none", "none"],
        ["hard(p=0.2)", "hard(p=0.3)", "hard(p=linear(start=0.1,end=0.4))", "hard(p=0.1)"],
        ["blur(sigma_max=0.5)", "blur(sigma_max=2.0)"],
    ],
)
def test_rates_and_seeds_share_compiled_code(
    compilations: CompileCounter, tmp_path: Path, methods: list[str], precision: str
) -> None:
    changes = [f"training.precision={precision}", "measure.probes=1"]
    for index, method in enumerate(methods):
        found = losses(tmp_path / f"compiled{index}", method, index, True, *changes)
        plain = losses(tmp_path / f"plain{index}", method, index, False, *changes)
        assert found == pytest.approx(plain, rel=1e-5)
        gc.collect()
    assert compilations.frame_count == 1


@pytest.mark.slow
def test_more_methods_than_torch_compiles_by_default_are_all_compiled(
    compilations: CompileCounter, tmp_path: Path
) -> None:
    for k in range(1, 11):
        losses(tmp_path / str(k), f"hard(k={k})", 0, True)
    assert compilations.frame_count == 10
