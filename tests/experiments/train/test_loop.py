"""The loop: what runs share, how they differ, and that an interrupted run ends with the same result as any other."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from attentiondrop import AttentionDropError
from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.files.whole_files import read_lines
from attentiondrop.experiments.methods.apply import Applied
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.classification.data import load_data
from attentiondrop.experiments.tasks.classification.task import Classification
from attentiondrop.experiments.train import checkpoint
from attentiondrop.experiments.train.epoch_log import BEST, EPOCHS, LAST, STATE
from attentiondrop.experiments.train.loop import Best, Training, initial_model
from attentiondrop.learning_rate import warmup_then_cosine
from attentiondrop.presets import plain

from ..conftest import TINY, scored

METHODS = [
    "none",
    "dropout(p=0.5)",
    "dropconnect(p=0.5)",
    "r-drop(p=0.5)",
    "hard(p=0.5)",
    "blur(sigma_max=2.0)",
    "droppath(p=0.5)",
]


def training(folder: Path, method: str = "none", seed: int = 0, *changes: str) -> Training:
    recipe = read_recipe("digits", "demo", [*TINY, *changes])
    return Training(recipe, read_method(method), seed, load_data(recipe.data), folder)


def train(folder: Path, *args: str | int) -> Training:
    folder.mkdir(exist_ok=True)
    found = training(folder, *args)
    found.resume()
    found.run(lambda epoch: None)
    return found


def weights(found: Training) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in found.plain.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "method", ["hard(p=entropy(target=0.9,start=0.3))", "headmask(count=1,choice=important)", "headpruning(share=0.5)"]
)
def test_measurements_change_nothing(method: str, tmp_path: Path) -> None:
    losses, states = [], []
    for probes in (0, 3):
        (tmp_path / str(probes)).mkdir()
        found = training(tmp_path / str(probes), method, 0, f"measure.probes={probes}", "training.epochs=3")
        epochs = found.run(lambda epoch: None)
        assert any(epoch.gradient_variance is not None for epoch in epochs) == bool(probes)
        losses.append([epoch.train_loss for epoch in epochs])
        states.append([tensor for one in found.applied.acting.values() for tensor in one.state_dict()["importance"]])
    assert losses[0] == losses[1]
    assert all(map(torch.equal, *states))


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_gradients_are_measured_on_batches_as_the_method_trains_them(name: str, tmp_path: Path) -> None:
    def measured(method: str) -> float | None:
        still = "training.learning_rate=1e-12", "training.epochs=1", "measure.probes=1"
        (epoch,) = training(tmp_path, method, 0, *still).run(lambda epoch: None)
        return epoch.gradient_variance

    plain = measured("none")
    assert measured(f"{name}(p=0.0)") == pytest.approx(plain, rel=1e-3)
    assert measured(name) != pytest.approx(plain, rel=1e-3)


def test_weights_that_the_last_step_spoils_are_a_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of that step is still a number. Scores of such weights would be an error instead."""
    found, steps = training(tmp_path, "none", 0, "training.epochs=2"), []
    count = found.step.count

    def spoil() -> None:
        count()
        steps.append(1)
        if len(steps) == found.steps:
            next(iter(found.plain.parameters())).data.fill_(math.nan)

    monkeypatch.setattr(found.step, "count", spoil)
    (epoch,) = found.run(lambda epoch: None)
    assert epoch.train_loss is None and epoch.validation is None


def test_steps_can_be_timed_beyond_the_end(tmp_path: Path) -> None:
    found = training(tmp_path, "hard(p=linear(start=0.0,end=0.5))", 0, "training.epochs=2")
    assert len(found.step_times(3)) == 3


def test_plain_attention_by_our_own_kernels_trains_the_same(tmp_path: Path) -> None:
    library, own = train(tmp_path / "library"), train(tmp_path / "own", "none", 0, "training.own_kernels=true")
    assert library.applied.attachment is None
    assert {str(site.spec) for site, _ in own.applied.attachment.rows()} == {str(plain())}
    for name, tensor in weights(library).items():
        torch.testing.assert_close(weights(own)[name], tensor, rtol=1e-4, atol=1e-5)
    # A method that has a spec runs in these kernels anyway.
    hard = training(tmp_path, "hard(p=0.5)", 0, "training.own_kernels=true")
    assert {str(site.spec) for site, _ in hard.applied.attachment.rows()} == {"hard(p=0.5,k=5)"}
    with pytest.raises(
        ArgumentError, match=r"training.own_kernels: expected false .* true with sinkhorn.*: found no att"
    ):
        training(tmp_path, "sinkhorn", 0, "training.own_kernels=true")


def test_all_methods_of_a_seed_start_from_the_same_weights(tiny) -> None:
    data = load_data(tiny.data)
    first = initial_model(tiny, read_method("none"), 3, data).state_dict()
    before = torch.get_rng_state()
    for text in METHODS:
        method = read_method(text)
        model = initial_model(tiny, method, 3, data)
        Applied(method, model)
        assert equal(model.state_dict(), first), text
    assert torch.equal(torch.get_rng_state(), before)
    assert not equal(initial_model(tiny, read_method("none"), 4, data).state_dict(), first)


def test_every_method_trains_to_weights_of_its_own(tmp_path) -> None:
    found = [
        weights(train(tmp_path / str(index), text))
        for index, text in enumerate([*METHODS, "hard+consistency", "labelsmoothing"])
    ]
    for index, one in enumerate(found):
        assert not any(equal(one, other) for other in found[:index]), index


def test_the_same_seed_gives_the_same_numbers(tmp_path) -> None:
    assert equal(weights(train(tmp_path / "a", "hard+dropout")), weights(train(tmp_path / "b", "hard+dropout")))


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("none", []),
        ("dropdim+hard+consistency", ["training.ema=0.9", "training.accumulate=2", "training.clip=0.5"]),
        ("hard(p=linear(start=0.0,end=0.5))", ["measure.probes=2"]),
        ("blur(sigma_max=learnable(init=0.5,high=2.0))", []),
        ("hard(p=entropy(target=0.9))", []),
        ("r-drop", ["training.precision=bfloat16"]),
    ],
)
def test_a_resumed_run_ends_bitwise_where_an_undisturbed_one_does(tmp_path, method: str, changes: list[str]) -> None:
    whole = train(tmp_path / "whole", method, 0, "training.epochs=3", *changes)
    folder = tmp_path / "parts"
    folder.mkdir()
    for epochs in (1, 2):
        part = training(folder, method, 0, "training.epochs=3", *changes)
        assert part.resume() == epochs - 1

        def stop(epoch, until=epochs) -> None:
            if epoch.epoch == until:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            part.run(stop)
    # A crash between writing the line and the state leaves a line without its state.
    with (folder / EPOCHS).open("a") as file:
        file.write('{"epoch": 3, "cut off')
    last = training(folder, method, 0, "training.epochs=3", *changes)
    assert last.resume() == 2
    last.run(lambda epoch: None)
    assert equal(weights(whole), weights(last))
    for name in (BEST, LAST):
        assert equal(checkpoint.load_weights(folder / name), checkpoint.load_weights(tmp_path / "whole" / name))
    lines = [path.read_text().splitlines() for path in (folder / EPOCHS, tmp_path / "whole" / EPOCHS)]
    without_seconds = [[line.split('"seconds"')[0] for line in one] for one in lines]
    assert without_seconds[0] == without_seconds[1] and len(lines[0]) == 3


def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path) -> None:
    # Compare losses, not weights: the bias of a key has no effect, so its gradient is rounding, which Adam scales up.
    losses = []
    for name, parts in (("a", 1), ("b", 4)):
        found = training(tmp_path / name, "none", 0, "training.epochs=3", f"training.accumulate={parts}")
        (tmp_path / name).mkdir()
        sizes: set[int] = set()
        found.plain.register_forward_pre_hook(
            lambda model, args, seen=sizes: seen.add(len(args[0])) if model.training else None
        )
        losses.append([epoch.train_loss for epoch in found.run(lambda epoch: None)])
        assert sizes == {16 // parts}
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_parts_of_unequal_size_are_refused(tmp_path) -> None:
    with pytest.raises(AttentionDropError, match="parts that divide 10 examples evenly, received 4"):
        training(tmp_path, "none", 0, "data.limit=10", "training.accumulate=4")


def test_a_loss_that_is_no_number_ends_the_training(tmp_path) -> None:
    found = training(tmp_path, "none", 0, "training.epochs=3")
    with torch.no_grad():
        next(found.plain.parameters()).fill_(math.nan)
    epochs = found.run(lambda epoch: None)
    assert len(epochs) == 1 and epochs[0].train_loss is None and epochs[0].validation is None
    assert not (tmp_path / STATE).exists()


def test_the_average_of_weights_is_what_is_kept(tmp_path) -> None:
    found = train(tmp_path, "none", 0, "training.ema=0.9")
    assert found.ema is not None
    assert equal(checkpoint.load_weights(tmp_path / LAST), found.ema.module.state_dict())
    assert not equal(checkpoint.load_weights(tmp_path / LAST), found.plain.state_dict())


def test_weights_of_some_epochs_are_kept_on_request(tmp_path) -> None:
    train(tmp_path, "none", 0, "training.epochs=3", "training.keep_every=2")
    assert [path.name for path in tmp_path.glob("epoch*")] == ["epoch2.safetensors"]


def test_clipping_changes_the_steps(tmp_path) -> None:
    # Adam ignores a common factor of all gradients, but not a factor that changes from step to step.
    one, clipped = train(tmp_path / "a"), train(tmp_path / "b", "none", 0, "training.clip=0.01")
    assert not equal(weights(one), weights(clipped))


def test_a_scheduled_weight_of_the_consistency_loss_moves(tmp_path) -> None:
    # Nothing else is scheduled here, and `dropout` has no site that could know of the progress.
    for index, part in enumerate(("hard(p=0.5)", "dropout(p=0.5)")):
        losses = [
            [
                epoch.train_loss
                for epoch in training(tmp_path, f"{part}+consistency(weight={weight})").run(lambda e: None)
            ]
            for weight in (0.0, 5.0, "steps(at_progress=[0.0,0.5],values=[0.0,5.0])")
        ]
        assert losses[2][0] == losses[0][0] and losses[2][1] > losses[0][1], (index, losses)


@pytest.mark.slow
def test_a_compiled_model_trains_to_the_same_weights(tmp_path) -> None:
    one = weights(train(tmp_path / "a", "blur", 0, "training.epochs=1"))
    compiled = weights(train(tmp_path / "b", "blur", 0, "training.epochs=1", "training.compile=true"))
    for name, tensor in one.items():
        torch.testing.assert_close(compiled[name], tensor, rtol=0, atol=1e-3, msg=name)


def test_learning_rate_rises_then_falls_to_zero() -> None:
    factors = [warmup_then_cosine(step, 100, 0.1) for step in range(101)]
    assert factors[0] == pytest.approx(0.1) and factors[9] == 1.0 and factors[100] == pytest.approx(0.0)
    assert factors[:10] == sorted(factors[:10]) and factors[10:] == sorted(factors[10:], reverse=True)
    assert warmup_then_cosine(0, 10, 0.0) == 1.0


def test_best_prefers_accuracy_then_likelihood_then_the_earlier_epoch() -> None:
    best = Best(Classification.metrics)
    scores = scored(accuracy=0.5, nll=1.0)
    assert best.improves(1, scores)
    assert not best.improves(2, scores)
    assert best.improves(3, scores | {"nll": 0.9})
    assert not best.improves(4, scores | {"accuracy": 0.4, "nll": 0.1})
    assert (best.epoch, best.scores) == (3, scored(0.5, 0.9))
    older = Best(Classification.metrics)
    older.load_state_dict({"epoch": 3, "accuracy": 0.5, "nll": 0.9})  # as it was stored before there were tasks
    assert not older.improves(4, scores) and older.improves(5, scores | {"nll": 0.8})


class TestCheckpoint:
    def test_any_tree_of_tensors_and_values_comes_back(self, tmp_path) -> None:
        shared = torch.arange(6.0).view(2, 3).T
        state = {"a": [1, 2.5, None, True, "x"], "b": {3: shared, "same": shared}, "c": (torch.zeros(0), ())}
        checkpoint.save_state(tmp_path / "s", state)
        found = checkpoint.load_state(tmp_path / "s")
        assert found is not None and found["a"] == state["a"] and found["c"][1] == ()
        assert torch.equal(found["b"][3], shared) and torch.equal(found["b"]["same"], shared)
        assert checkpoint.load_state(tmp_path / "none") is None
        with pytest.raises(TypeError, match="expected tensors and plain values, found object"):
            checkpoint.save_state(tmp_path / "t", {"a": object()})
        assert [path.name for path in tmp_path.iterdir()] == ["s"]

    @pytest.mark.parametrize("cut", [0, 5, 200])
    def test_a_truncated_file_is_said_to_be_damaged(self, tmp_path, cut: int) -> None:
        path = tmp_path / "state"
        checkpoint.save_state(path, {"a": torch.arange(1000.0)})
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(AttentionDropError, match="state cannot be read"):
            checkpoint.load_state(path)
        with pytest.raises(AttentionDropError, match="state cannot be read"):
            checkpoint.load_weights(path)


def test_seldom_validated_and_saved_runs_train_the_same_weights_and_resume(tmp_path) -> None:
    often = train(tmp_path / "often", "hard", 0, "training.epochs=5")
    changes = ("training.epochs=5", "training.validate_every=2", "training.save_every=3")
    seldom = train(tmp_path / "seldom", "hard", 0, *changes)
    assert equal(weights(often), weights(seldom))
    lines = read_lines(tmp_path / "seldom" / EPOCHS)
    assert [line["validation"] is not None for line in lines] == [False, True, False, True, True]
    assert seldom.best.epoch in (2, 4, 5)
    (tmp_path / "killed").mkdir()

    def stop(epoch) -> None:
        if epoch.epoch == 4:
            raise KeyboardInterrupt

    again = training(tmp_path / "killed", "hard", 0, *changes)
    assert again.resume() == 0
    with pytest.raises(KeyboardInterrupt):
        again.run(stop)
    last = training(tmp_path / "killed", "hard", 0, *changes)
    assert last.resume() == 3 and len(read_lines(tmp_path / "killed" / EPOCHS)) == 3
    last.run(lambda epoch: None)
    assert equal(weights(last), weights(often)) and last.best.epoch == seldom.best.epoch
