"""Captured steps on a GPU: CUDA graphs give what uncaptured steps give, and draw anew in every replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.tasks.interface import Batch
from attentiondrop.experiments.train import loop
from attentiondrop.experiments.train.loop import Training
from attentiondrop.torch import functional

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

#: 4 steps an epoch, 20 in all. A learning rate that is a power of two is the same number as a float32.
SETTINGS = [
    "data.limit=64",
    "model.arguments={depth: 2, embed_dim: 32, num_heads: 2}",
    "training.epochs=5",
    "training.batch_size=16",
    f"training.learning_rate={2.0**-9}",
    "training.device=cuda",
    "measure.probes=0",
]


@pytest.fixture(autouse=True)
def exact_learning_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = loop.warmup_then_cosine
    monkeypatch.setattr(loop, "warmup_then_cosine", lambda *args: float(np.float32(exact(*args))))


def training(
    folder: Path, method: str, *changes: str, capture: str, say: Callable[[str], None] = lambda line: None
) -> Training:
    folder.mkdir(exist_ok=True)
    recipe = read_recipe("digits", "demo", [*SETTINGS, f"training.capture={capture}", *changes])
    return Training(recipe, read_method(method), 0, load_data(recipe.data), folder, say)


def run(found: Training) -> list[float | None]:
    return [epoch.train_loss for epoch in found.run(lambda epoch: None)]


def check_close(one: Training, other: Training) -> None:
    mine, theirs = one.plain.state_dict(), other.plain.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        # A bias of the keys changes nothing, so its gradient is rounding, which Adam makes a whole step of.
        if not name.endswith("qkv.bias"):
            torch.testing.assert_close(
                tensor, theirs[name], rtol=1e-3, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}"
            )


METHODS = [
    ("none", []),
    ("none", ["training.ema=0.9", "training.clip=0.5", "training.accumulate=2", "measure.probes=2"]),
    ("dropout(p=0.3)+hard(p=0.5)", []),
    ("droppath(p=0.3)+blur(sigma_max=2.0)", []),
    ("dropconnect(p=0.3)", []),
    ("hard(p=linear(start=0.0,end=0.5))+consistency(weight=linear(start=0.0,end=5.0))", ["measure.probes=2"]),
    ("r-drop(p=0.3)", ["training.consistency_mode=sequential"]),
    ("blur(sigma_max=learnable(init=0.5,high=2.0))", []),
    ("hard(p=entropy(target=0.9))", ["measure.probes=2"]),
    ("noise(sigma=heads(values=[0.1,linear(start=0.0,end=2.0)]))", []),
    ("layerdrop(p=0.5)+dropdim(kind=span)", []),
    ("branchdrop(p=0.5)+patchdropout", []),
    ("mixup+confidencepenalty(weight=1.0)", []),
    ("manifoldmixup(alpha=0.5)", ["training.accumulate=2"]),
    ("emateacher(weight=5.0,decay=0.5)+dropout(p=0.3)", []),
    ("headpruning(share=0.5,at=0.5)", []),
    ("eadra(entropy=1.0,distance=1.0)", ["measure.probes=2"]),
    ("adaptivespan(ramp=2.0,penalty=0.1)", []),
    ("window(radius=2)", []),
    ("hiddenkey", []),
]


@pytest.mark.parametrize(("method", "changes"), METHODS)
def test_20_captured_steps_end_where_uncaptured_ones_do(tmp_path, method: str, changes: list[str]) -> None:
    plain = training(tmp_path / "off", method, *changes, capture="off")
    captured = training(tmp_path / "on", method, *changes, capture="on")
    losses = run(plain), run(captured)
    assert plain.captured == "training.capture is off" and captured.captured == "captured"
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    check_close(plain, captured)
    for one, other in zip(plain.applied.parameters(), captured.applied.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    if plain.applied.attachment is not None and captured.applied.attachment is not None:
        rates = [[list(site.values()) for site in one.applied.attachment.rates().values()] for one in (plain, captured)]
        assert np.asarray(rates[0]) == pytest.approx(np.asarray(rates[1]), rel=1e-3)


@pytest.mark.parametrize(
    "method",
    [
        "hard(p=entropy(target=0.8,start=0.2))",
        "dropkey(p=entropy(target=0.9,start=0.2))+consistency",
        "attndropout(p=entropy(target=0.9,start=0.2))",
        "blur(sigma_max=entropy(target=0.9,high=2.0,start=0.2))",
    ],
)
def test_adaptive_rates_of_short_rows(tmp_path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits, short rows have kernels of their own, which read the rate in the backward, too."""
    paths: set[str] = set()
    fused = functional.fused_attention
    monkeypatch.setattr(functional, "fused_attention", lambda route: (paths.add(route.path), fused(route))[1])
    found = [
        training(tmp_path / capture, method, "training.precision=bfloat16", capture=capture)
        for capture in ("off", "on")
    ]
    losses = [run(one) for one in found]
    assert paths == {"short rows"} and found[1].captured == "captured"
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    rates = [np.asarray([list(site.values()) for site in one.applied.attachment.rates().values()]) for one in found]
    # 20 replays moved them as 20 steps did.
    assert rates[0] == pytest.approx(rates[1], abs=5e-3) and abs(rates[0] - 0.2).max() > 0.02


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dropout(p=0.3)+hard(p=0.5)", "blur+consistency", "hard(p=entropy(target=0.9))"])
def test_compiled_steps_are_captured_too(tmp_path, method: str) -> None:
    found = [
        training(tmp_path / capture, method, "training.compile=true", "training.precision=bfloat16", capture=capture)
        for capture in ("off", "on")
    ]
    losses = [run(one) for one in found]
    assert found[1].captured == "captured"
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)


@pytest.mark.parametrize("method", ["hard(p=0.5)", "blur(sigma_max=2.0)", "dropout(p=0.5)"])
def test_every_replay_draws_anew(tmp_path, method: str) -> None:
    found = training(tmp_path, method, capture="on")
    batch = next(iter(found.data.train_batches(seed=0, epoch=0, batch_size=16)))
    found.plain.train()
    found.optimizer.param_groups[0]["lr"] = 0.0
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        for _ in range(4):
            found.step.total.zero_()
            found._capturing([batch], [None])
            losses.append(found.step.total.item())
    assert len(set(losses[:4])) == 4  # one graph, fresh draws
    assert losses[:4] == losses[4:8]  # which follow from the seed
    assert not set(losses[:4]) & set(losses[8:])
    assert len(found._capturing._graphs) == 1


def test_a_captured_run_is_resumed(tmp_path) -> None:
    method = "dropout(p=0.3)+hard(p=linear(start=0.0,end=0.5))+consistency(weight=linear(start=0.0,end=5.0))"
    whole = training(tmp_path / "whole", method, capture="on")
    run(whole)

    def stop(epoch) -> None:
        raise KeyboardInterrupt

    for done, capture in enumerate(("on", "off", "on", "auto", "on")):
        part = training(tmp_path / "parts", method, capture=capture)
        assert part.resume() == done
        with pytest.raises(KeyboardInterrupt):
            part.run(stop)
    check_close(whole, part)


def test_graphs_are_captured_again_when_a_tensor_was_replaced(tmp_path) -> None:
    found = [
        training(tmp_path / capture, "hard(p=linear(start=0.0,end=0.5))", capture=capture) for capture in ("off", "on")
    ]
    losses = []
    for one in found:
        losses.append([one._epoch(0).train_loss])
        for site in one.applied.attachment.sites:
            values = site.driven.values[0]
            values["p"] = values["p"].clone()
        losses[-1].append(one._epoch(1).train_loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    check_close(*found)


def test_batches_of_several_shapes_share_a_pool(tmp_path) -> None:
    plain, found = (training(tmp_path / capture, "hard", capture=capture) for capture in ("off", "on"))
    images, labels = next(iter(found.data.train_batches(seed=0, epoch=0, batch_size=16)))
    for one, take in ((plain, plain.step), (found, found._capturing)):
        torch.manual_seed(0)
        one.plain.train()
        for size in (16, 8, 16, 4, 8, 16):
            take([Batch(images[:size], labels[:size])], [None])
    assert len(found._capturing._graphs) == 3
    check_close(plain, found)


def test_trying_a_step_leaves_no_trace(tmp_path) -> None:
    found = training(tmp_path, "dropout+hard(p=entropy(target=0.9))", capture="on")
    found.plain.train()
    batch = next(iter(found.data.train_batches(seed=0, epoch=0, batch_size=16)))
    before = {name: tensor.clone() for name, tensor in found.plain.state_dict().items()}
    rates, state = found.applied.state_dict(), torch.cuda.get_rng_state()
    found._capturing._capture([batch], [None])
    assert all(torch.equal(tensor, before[name]) for name, tensor in found.plain.state_dict().items())
    assert all(not value.any() for entry in found.optimizer.state.values() for value in entry.values())
    assert found.applied.state_dict() == rates and torch.equal(torch.cuda.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in found.plain.parameters())


class Doing(nn.Module):
    def __init__(self, inner: nn.Module, deed: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.inner, self.deed = inner, deed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.deed(x)
        return self.inner(x)


@pytest.mark.parametrize(
    "deed",
    [
        lambda x: x.detach().sum().item(),  # found in the last pass of the warm-up
        lambda x: torch.cuda.synchronize(),  # breaks the capture itself
        lambda x: torch.rand(1),  # a number of the CPU
    ],
)
def test_a_capture_that_fails_leaves_a_run_that_works(tmp_path, deed) -> None:
    lines: list[str] = []
    plain = training(tmp_path / "off", "dropout(p=0.3)+hard", capture="off")
    found = training(tmp_path / "auto", "dropout(p=0.3)+hard", capture="auto", say=lines.append)
    for one in (plain, found):
        one.plain.blocks[0] = Doing(one.plain.blocks[0], deed)
    losses = run(plain), run(found)
    assert len(lines) == 1 and lines[0].startswith("training.capture: off, since ")
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    # The next run of this process captures as if nothing had happened.
    again = training(tmp_path / "again", "dropout(p=0.3)+hard", capture="on")
    run(again)
    assert again.captured == "captured"


def test_float16_is_not_captured_and_says_so(tmp_path) -> None:
    lines: list[str] = []
    found = training(tmp_path, "none", "training.precision=float16", capture="auto", say=lines.append)
    run(found)
    assert lines == [
        "training.capture: off, since training.precision float16 scales its gradients by what it finds in them"
    ]


def test_a_run_records_that_it_was_captured_and_the_memory_it_held(tmp_path) -> None:
    recipe = read_recipe("digits", "demo", SETTINGS)
    result = execute(Job(recipe.to_dict(), "hard(p=0.1,k=5)", 0, str(tmp_path)))
    assert result.status == "finished" and result.capture == "captured"
    assert result.peak_reserved_mib >= result.peak_memory_mib > 0
