"""ConsistencyTrainer: one plain pass in evaluation, and the right weight of both losses under accumulation."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from consistency_models import BERT, GPT2, SIZES, T5, exact_norms, hugging, randomise
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attach, functional
from attentiondrop.torch.attach import attend as stacked

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from attentiondrop.integrations.transformers import ConsistencyTrainer  # noqa: E402

ROWS, LENGTH = 4, 6
BLUR = ad.BlurSmoothing(sigma_max=2.0)  # one sigma in a call: the same for any size of the batch


class Plain(nn.Module):
    """A model that does not know `num_items_in_batch`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(16, 5)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        output = {"logits": self.head(x.mean(1))}
        return output if labels is None else {"loss": F.cross_entropy(output["logits"], labels)} | output


MODELS = {
    "bert": (lambda: hugging("BertForSequenceClassification", **BERT), "*.layer.3.*"),
    "bert tokens": (lambda: hugging("BertForTokenClassification", **BERT), "*.layer.3.*"),
    "gpt2": (lambda: hugging("GPT2LMHeadModel", **GPT2), "*.h.3.*"),
    "llama": (lambda: exact_norms(hugging("LlamaForCausalLM", **SIZES, num_key_value_heads=2)), "*.layers.3.*"),
    "t5": (lambda: hugging("T5ForConditionalGeneration", **T5), "decoder.block.2.*"),
    "plain": (Plain, "layers.1.*"),
}


def build(name: str) -> tuple[nn.Module, str]:
    torch.manual_seed(0)
    make, late = MODELS[name]
    return randomise(make(), 1.5).double().train(), late


def rows(name: str) -> list[dict[str, Tensor]]:
    """Rows whose numbers of labels differ."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for index in range(ROWS):
        ids = torch.randint(3, 50, (LENGTH,), generator=generator)
        row: dict[str, Any] = {"input_ids": ids}
        if name in ("bert", "plain"):
            row["labels"] = torch.tensor(index)
        else:
            row["labels"] = (ids % 5 if name == "bert tokens" else ids).clone()
            row["labels"][LENGTH - index :] = -100
        made.append(row)
    return made


def trainer_for(name: str, folder: Path, batch: int = ROWS, steps: int = 1, **extra: Any) -> ConsistencyTrainer:
    model, late = build(name)
    attach(model, {late: extra.pop("spec", BLUR)})
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=steps,
        max_steps=1,
        learning_rate=1.0,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        optim="sgd",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        label_smoothing_factor=extra.pop("smoothing", 0.0),
    )
    extra.setdefault("consistency", ad.Consistency(weight=0.5))
    return ConsistencyTrainer(model, arguments, train_dataset=rows(name), eval_dataset=rows(name), **extra)


@pytest.fixture
def constant_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call has the same seed, so that views differ while the split into batches changes nothing."""
    monkeypatch.setattr(stacked, "draw_seed", lambda like: torch.tensor(12345))


@pytest.fixture
def two_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, if each view is a pass of its own: one seed for each of two views."""
    seeds = itertools.cycle((12345, 54321))
    monkeypatch.setattr(functional, "draw_seed", lambda *_: torch.tensor(next(seeds)))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "name, mode, extra",
    [
        ("bert", "batch", {}),
        ("bert tokens", "shared", {}),
        ("gpt2", "shared", {}),
        ("gpt2", "batch", {"consistency": ad.r_drop(weight=0.5)}),
        ("gpt2", "batch", {"smoothing": 0.1}),
        ("t5", "shared", {}),
        ("plain", "shared", {}),
        # The loss of this model ignores the number of items, although its forward takes it.
        ("bert", "sequential", {}),
        ("bert", "sequential", {"smoothing": 0.1}),
        ("bert tokens", "sequential", {}),
        ("gpt2", "sequential", {}),
        ("llama", "sequential", {}),
        ("llama", "sequential", {"consistency": ad.r_drop(weight=0.5)}),
        ("plain", "sequential", {}),
    ],
)
def test_accumulation_changes_nothing(
    tmp_path: Path, constant_seed: None, two_seeds: None, name: str, mode: str, extra: dict[str, Any]
) -> None:
    """One batch of four rows, or four of one row each: the same step."""
    found = []
    for batch, steps in ((ROWS, 1), (1, ROWS)):
        trainer = trainer_for(name, tmp_path, batch, steps, consistency_mode=mode, **extra)
        before = weights(trainer.model)
        trainer.train()
        after = weights(trainer.model)
        found.append({key: before[key] - after[key] for key in before})
        assert trainer.state.log_history[0]["divergence"] > 0
    assert any(step.abs().max() > 1e-3 for step in found[0].values())
    for key in found[0]:
        torch.testing.assert_close(found[0][key], found[1][key], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_the_model_s_own(tmp_path: Path, name: str) -> None:
    trainer = trainer_for(name, tmp_path)
    batch = trainer.data_collator(rows(name))
    with torch.no_grad():
        output = trainer.model.eval()(**batch)
    logits = trainer.pick_logits(output)
    found = trainer.own_loss(logits, batch["labels"], None).to(output["loss"].dtype)
    torch.testing.assert_close(found, output["loss"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["bert tokens", "t5"])
def test_all_modes_agree(tmp_path: Path, name: str) -> None:
    """With a perturbation that does not draw, every mode has the loss of a plain pass, and no divergence."""
    fixed = ad.BlurSmoothing(sigma_min=1.0, sigma_max=1.0)
    losses = []
    for mode in ("batch", "shared", "sequential"):
        trainer = trainer_for(name, tmp_path, consistency_mode=mode, spec=fixed)
        losses.append(trainer.compute_loss(trainer.model.train(), trainer.data_collator(rows(name))))
        assert abs(trainer._divergence) < 1e-12
    for other in losses[1:]:
        torch.testing.assert_close(losses[0], other, rtol=1e-5, atol=1e-6)


def test_evaluation_is_one_plain_pass(tmp_path: Path) -> None:
    trainer = trainer_for("bert", tmp_path)
    calls = []
    trainer.model.register_forward_hook(lambda *_: calls.append(1))
    found = trainer.evaluate()["eval_loss"]
    assert len(calls) == 1
    trainer.model.eval()
    with torch.no_grad():
        expected = trainer.model(**trainer.data_collator(rows("bert"))).loss
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_a_loss_function_sees_each_view(tmp_path: Path, constant_seed: None) -> None:
    seen = []

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        seen.append(outputs.logits.shape[0])
        return F.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    trainer = trainer_for("bert", tmp_path, compute_loss_func=loss, consistency=ad.r_drop())
    trainer.train()
    assert seen == [ROWS, ROWS]


def test_a_loss_function_without_labels(tmp_path: Path, constant_seed: None) -> None:
    """The Trainer takes such a loss for one of the whole accumulated batch: so must be the divergence."""
    steps = []
    for batch, accumulated in ((ROWS, 1), (1, ROWS)):

        def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
            return outputs["logits"].square().mean() / accumulated

        trainer = trainer_for("plain", tmp_path, batch, accumulated, compute_loss_func=loss)
        trainer.train_dataset = [{"input_ids": row["input_ids"]} for row in rows("plain")]
        before = weights(trainer.model)
        trainer.train()
        after = weights(trainer.model)
        steps.append({key: before[key] - after[key] for key in before})
    for key in steps[0]:
        torch.testing.assert_close(steps[0][key], steps[1][key], rtol=1e-5, atol=1e-8)


def test_settings_come_from_the_attachment(tmp_path: Path) -> None:
    trainer = trainer_for("bert", tmp_path)
    with pytest.raises(ad.ArgumentError, match="no consistency settings: pass consistency="):
        ConsistencyTrainer(trainer.model, trainer.args)
    assert ConsistencyTrainer(trainer.model, trainer.args, consistency=0.25).consistency.weight == 0.25
    with pytest.raises(ad.ArgumentError, match="consistency_mode: expected one of"):
        ConsistencyTrainer(trainer.model, trainer.args, consistency="consistency()", consistency_mode="both")
    model, late = build("bert")
    attach(model, {late: "blur(sigma_max=1.0)+consistency(weight=0.25,views=3)"})
    assert ConsistencyTrainer(model, trainer.args).consistency == ad.Consistency(weight=0.25, views=3)


def test_what_is_logged_is_the_mean_and_nothing_else_is_kept(tmp_path: Path) -> None:
    """A long training without a log must not keep a tensor for each step."""
    trainer = trainer_for("plain", tmp_path)
    inputs = trainer.data_collator(rows("plain"))

    def divergence_of_a_step() -> float:
        loss, output = trainer.compute_loss(trainer.model.train(), inputs, return_outputs=True)
        return (loss.item() - F.cross_entropy(output["logits"], inputs["labels"]).item()) / 0.5

    held = []
    for steps in (4, 1):  # the second log is of the steps after the first one
        found = []
        for _ in range(steps):
            found.append(divergence_of_a_step())
            held.append(sum(isinstance(x, Tensor) for x in gc.get_objects()))
        logs = {"loss": 0.0}
        trainer.log(logs)
        assert logs["divergence"] == pytest.approx(sum(found) / steps)
    assert held[3] == held[0]


@pytest.mark.parametrize("labels", [torch.ones(ROWS, 5), torch.rand(ROWS, 5)], ids=["several labels", "regression"])
def test_outputs_that_are_no_logits_of_a_softmax_are_refused(tmp_path: Path, labels: Tensor) -> None:
    """Unless `pick_logits` makes some."""

    class Sigmoids(ConsistencyTrainer):
        def pick_logits(self, outputs: Any) -> Any:
            y = super().pick_logits(outputs)
            return torch.stack([torch.zeros_like(y), y], dim=-1)

    trainer = trainer_for("bert", tmp_path, consistency_mode="sequential")
    trainer.model.config.problem_type = "regression" if labels[0, 0] < 1 else None
    batch = {**trainer.data_collator(rows("bert")), "labels": labels.double()}
    with pytest.raises(ad.ArgumentError, match=r"pick_logits: expected .* received 'the outputs of a "):
        trainer.compute_loss(trainer.model.train(), dict(batch))
    other = Sigmoids(trainer.model, trainer.args, consistency=0.5, consistency_mode="sequential")
    assert other.compute_loss(trainer.model.train(), dict(batch)).isfinite()


def test_losses_that_are_not_cross_entropy_are_refused(tmp_path: Path) -> None:
    trainer = trainer_for("bert", tmp_path)
    batch = trainer.data_collator(rows("bert"))
    batch["labels"] = torch.rand(ROWS, 5)
    with pytest.raises(ad.ArgumentError, match="compute_loss_func: expected a loss for labels of shape"):
        trainer.compute_loss(trainer.model.train(), batch)
