"""A compiled translation model, and its loss, have one code for the batches of all buckets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.registry import find_task
from attentiondrop.experiments.train.loop import Training

pytest.importorskip("tokenizers")

SETTINGS = [
    "data.sentences=300",
    "data.vocabulary=280",
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "training.epochs=1",
    "training.batch_size=640",
    "training.device=cpu",
    "measure.probes=0",
]


def losses(folder: Path, method: str, *settings: str) -> list[float]:
    """The losses of a short run."""
    recipe = read_recipe("toy-translation", "demo", [*SETTINGS, *settings])
    data = find_task("translation").load_data(recipe.data)
    folder.mkdir()
    return [e.train_loss for e in Training(recipe, read_method(method), 0, data, folder).run(lambda e: None)]


@pytest.mark.parametrize(
    "method", ["hard(p=0.3,k=3)", *(pytest.param(one, marks=pytest.mark.slow) for one in ("none", "blur", "r-drop"))]
)
def test_few_compilations_serve_all_buckets(compilations: CompileCounter, tmp_path: Path, method: str) -> None:
    eager, compiled = (losses(tmp_path / str(on), method, f"training.compile={on}") for on in (False, True))
    data = find_task("translation").load_data(read_recipe("toy-translation", "demo", SETTINGS).data)
    shapes = {batch.targets.tokens.shape for batch in data.train_batches(seed=0, epoch=0, batch_size=640)}
    assert compiled == pytest.approx(eager, rel=1e-5)
    # The model, the loss, and what compares two views. Each is compiled at most three times: torch compiles again for sizes
    # of 1, and where two sizes that differ were equal at first.
    functions = {"forward", "both"} if method == "r-drop" else {"forward", "loss"}
    assert set(compilations.asked) == functions
    assert len(functions) <= compilations.frame_count <= 3 * len(functions) < len(shapes) * len(functions)


def test_the_loss_can_be_compiled_alone(compilations: CompileCounter, tmp_path: Path) -> None:
    losses(tmp_path / "run", "blur+consistency", "training.compile_loss=true")
    assert set(compilations.asked) == {"both"}


def test_the_loss_can_be_left_out_of_what_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is asked for decides. That the model can be traced, for all buckets, is tested above."""
    asked: list[str] = []

    def noted(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        asked.append(function.__name__)
        return function

    monkeypatch.setattr(torch, "compile", noted)
    losses(tmp_path / "run", "blur+consistency", "training.compile=true", "training.compile_loss=false")
    assert asked == ["forward"]


def test_the_compiled_loss_gets_no_number_that_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inductor would compile the loss anew for each count of subwords, eight times, and then give up."""
    plain = losses(tmp_path / "plain", "none")
    asked: list[Any] = []

    def fake(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def call(output: Tensor, targets: Any, smoothing: float) -> Any:
            asked.append(targets)
            return function(output, targets, smoothing)

        return call

    monkeypatch.setattr(torch, "compile", fake)
    assert losses(tmp_path / "compiled", "none", "training.compile_loss=true") == pytest.approx(plain, rel=1e-6)
    assert len(asked) > 1 and all(isinstance(each, Tensor) for targets in asked for each in targets)


@pytest.mark.parametrize(
    "method",
    [
        "blur+consistency(weight=2.0)",
        "blur+consistency(weight=2.0,task=first,direction=symmetric,views=3)",
        "blur+consistency(weight=linear(start=0.0,end=2.0))",
        "confidencepenalty+blur+consistency(weight=2.0)",
    ],
)
def test_the_joined_losses_of_views_are_those_of_the_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    few = "data.sentences=100"  # some steps: a weight that grows has several values
    plain = losses(tmp_path / "plain", method, few, "training.compile_loss=false")
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    assert losses(tmp_path / "joined", method, few, "training.compile_loss=true") == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize(("compiled", "dtype"), [("true", torch.bfloat16), ("false", torch.float32)])
def test_only_a_compiled_loss_reads_narrow_logits(tmp_path: Path, compiled: str, dtype: torch.dtype) -> None:
    changes = ["training.precision=bfloat16", f"training.compile_loss={compiled}"]
    recipe = read_recipe("toy-translation", "demo", [*SETTINGS, *changes])
    task = find_task("translation")
    data = task.load_data(recipe.data)
    training = Training(recipe, read_method("none"), 0, data, tmp_path)
    assert training.model(**task.examples(data, 2).inputs).dtype == dtype


def test_a_compiled_loss_alone_has_room_for_all_methods(compilations: CompileCounter, tmp_path: Path) -> None:
    with torch._dynamo.config.patch(recompile_limit=8):
        losses(tmp_path / "run", "none", "training.compile_loss=true")
        assert torch._dynamo.config.recompile_limit >= 64
