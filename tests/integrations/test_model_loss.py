"""ConsistencyTrainer finds out in its first step how the model computes its own loss, and refuses to train another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from consistency_models import BERT, SIZES, hugging, randomise
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attach

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from attentiondrop.integrations.model_loss import one_label  # noqa: E402
from attentiondrop.integrations.transformers import ConsistencyTrainer  # noqa: E402

#: A perturbation that does not draw: all views are equal, and every mode has the loss of one plain pass.
FIXED = "blur(sigma_min=1.0,sigma_max=1.0)"
ADAPTIVE = "hard(p=entropy(0.5,start=0.2),k=3)"

#: `attach` cannot reach its attention, so its dropout must do; at this rate, it drops nothing.
XLM = {"vocab_size": 50, "emb_dim": 16, "n_layers": 2, "n_heads": 4, "dropout": 1e-9, "attention_dropout": 0.0}
BART = {
    "vocab_size": 50,
    "d_model": 16,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
    "dropout": 0.0,
}
#: Name: the fields of the configuration, and whether the model shifts labels.
MODELS: dict[str, tuple[dict[str, Any], bool]] = {
    "XLMWithLMHeadModel": (XLM, False),  # a masked language model, and listed as a causal one
    "BartForCausalLM": (BART, False),  # its labels are shifted already
    "BertForMaskedLM": (BERT, False),
    "BertLMHeadModel": ({**BERT, "is_decoder": True}, True),
    "LlamaForCausalLM": ({**SIZES, "num_key_value_heads": 2}, True),
}


def batch() -> dict[str, Tensor]:
    ids = torch.randint(5, 50, (2, 8), generator=torch.Generator().manual_seed(0))
    labels = torch.full_like(ids, -100)
    labels[0, 3], labels[1, 5] = 7, 9
    return {"input_ids": ids, "labels": labels}


def trainer_for(model: nn.Module, folder: Path, mode: str = "batch", spec: str | None = FIXED) -> ConsistencyTrainer:
    if spec is not None:
        attach(model, spec)
    arguments = transformers.TrainingArguments(str(folder), use_cpu=True, report_to=[])
    return ConsistencyTrainer(model.train(), arguments, consistency=ad.Consistency(0.5), consistency_mode=mode)


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return randomise(hugging(name, **MODELS[name][0]), 1.5)


@pytest.mark.parametrize("mode", ["batch", "sequential"])
@pytest.mark.parametrize("name", MODELS)
def test_labels_are_shifted_as_the_model_does(tmp_path: Path, name: str, mode: str) -> None:
    trainer = trainer_for(build(name), tmp_path, mode, None if MODELS[name][0] is XLM else FIXED)
    loss = trainer.compute_loss(trainer.model, batch())
    torch.testing.assert_close(loss, trainer.model(**batch()).loss, rtol=1e-4, atol=1e-5)
    # The divergence is that of the positions that predict a label.
    positions = trainer._mask(torch.zeros(2, 8, 50), batch()["labels"]).nonzero().tolist()
    assert positions == ([[0, 2], [1, 4]] if MODELS[name][1] else [[0, 3], [1, 5]])


@pytest.mark.parametrize("mode", ["batch", "sequential"])
def test_the_loss_is_divided_by_the_items_of_all_accumulated_batches(tmp_path: Path, mode: str) -> None:
    trainer, items = trainer_for(build("LlamaForCausalLM"), tmp_path, mode), torch.tensor(8)
    loss = trainer.compute_loss(trainer.model, batch(), num_items_in_batch=items)
    torch.testing.assert_close(loss, trainer.model(**batch(), num_items_in_batch=items).loss, rtol=1e-4, atol=1e-5)


def test_low_precision(tmp_path: Path) -> None:
    """The mean loss of many labels, rounded to bfloat16, may be the same with shifted labels."""
    model = build("BartForCausalLM").bfloat16()
    trainer = trainer_for(model, tmp_path)
    ids = torch.randint(5, 50, (64, 32), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "labels": ids.roll(1, dims=0)}
    found = trainer._measured(model, inputs, None)
    assert found.own.numel() == 1 and found.fits() == (True, True)
    trainer.compute_loss(model, inputs)
    assert not trainer._shifts
    model, inputs = build("LlamaForCausalLM").bfloat16(), {"input_ids": ids[:, :16], "labels": ids[:, :16]}
    trainer = trainer_for(model, tmp_path)
    trainer.compute_loss(model, inputs)
    assert trainer._shifts


def test_one_label() -> None:
    labels = torch.tensor([[5, -100, -100], [6, 7, 8]])
    assert one_label(labels).tolist() == [[-100, -100, -100], [-100, 7, -100]]


class Weighted(nn.Module):
    """A classifier with a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.layer(self.embed(input_ids)).mean(1))
        if labels is None:
            return {"logits": logits}
        weight = torch.arange(1.0, 6.0)
        return {"loss": F.cross_entropy(logits, labels, weight), "logits": logits}


class Unlabelled(Weighted):
    """A model without a loss: nothing contradicts the cross entropy."""

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return super().forward(input_ids)


class Silent(Weighted):
    """It takes labels, and computes no loss."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return super().forward(input_ids)


class ByKeyword(Weighted):
    """Its signature does not name the labels."""

    def forward(self, input_ids: Tensor, **others: Any) -> dict[str, Tensor]:
        return super().forward(input_ids, others.get("labels"))


def classes(*labels: int) -> dict[str, Tensor]:
    return {"input_ids": batch()["input_ids"], "labels": torch.tensor(labels)}


def test_another_loss_is_refused(tmp_path: Path) -> None:
    for mode, cls in (("batch", Weighted), ("shared", Weighted), ("batch", ByKeyword)):
        trainer = trainer_for(cls(), tmp_path, mode)
        with pytest.raises(
            ad.AttentionDropError, match=rf'{cls.__name__} computes another loss .*"sequential".*compute_loss_func'
        ):
            trainer.compute_loss(trainer.model, classes(0, 4))
    sequential = trainer_for(Weighted(), tmp_path, "sequential")
    assert sequential.compute_loss(sequential.model, classes(0, 4), num_items_in_batch=torch.tensor(2)) > 0
    trainer = trainer_for(Weighted(), tmp_path)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: F.cross_entropy(
        outputs["logits"], labels, torch.arange(1.0, 6.0)
    )
    assert trainer.compute_loss(trainer.model, classes(0, 4)) > 0


def test_the_labels_of_samples_are_never_shifted(tmp_path: Path) -> None:
    trainer = trainer_for(Weighted(), tmp_path)
    trainer._shifts = True
    assert trainer._targets(torch.tensor([0, 4])).tolist() == [0, 4]


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "LlamaForCausalLM"])
def test_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Half of the items are in another process, over which the gradients are averaged: the loss is a plain mean."""
    model = randomise(hugging(name, **(MODELS | {"BertForSequenceClassification": (BERT, False)})[name][0]), 1.5)
    trainer = trainer_for(model, tmp_path, "sequential")
    monkeypatch.setattr(type(trainer.accelerator), "num_processes", 2)
    inputs = classes(0, 4) if name.startswith("Bert") else batch()
    loss = trainer.compute_loss(model, inputs, num_items_in_batch=torch.tensor(4))
    torch.testing.assert_close(loss, model(**inputs).loss)


@pytest.mark.parametrize("cls", [Unlabelled, Silent])
def test_a_model_without_a_loss_is_trained_with_cross_entropy(tmp_path: Path, cls: type[nn.Module]) -> None:
    trainer = trainer_for(cls(), tmp_path)
    assert trainer.compute_loss(trainer.model, classes(0, 4)) > 0


def test_a_model_that_takes_no_number_of_items_has_means(tmp_path: Path) -> None:
    """The Trainer itself divides its loss by the number of accumulated batches."""
    trainer, losses = trainer_for(Unlabelled(), tmp_path, spec="dropkey(p=0.3)"), []
    for items in (None, torch.tensor(8)):
        torch.manual_seed(0)
        losses.append(trainer.compute_loss(trainer.model, classes(0, 4), num_items_in_batch=items))
    assert torch.equal(*losses)


def test_a_batch_without_labels_settles_nothing(tmp_path: Path) -> None:
    trainer = trainer_for(Weighted(), tmp_path)
    trainer.compute_loss(trainer.model, classes(-100, -100))
    with pytest.raises(ad.AttentionDropError, match="another loss"):
        trainer.compute_loss(trainer.model, classes(0, 4))


def test_labels_that_are_no_classes_of_the_logits_are_left_to_the_model(tmp_path: Path) -> None:
    """On a GPU, a cross entropy with such labels would end the process."""

    class Own(Weighted):
        def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            output = super().forward(input_ids)
            return {"loss": output["logits"].square().mean(), **output}

    trainer = trainer_for(Own(), tmp_path, "sequential")
    assert trainer.compute_loss(trainer.model, classes(0, 255)) > 0


@pytest.mark.parametrize("mode", ["batch", "sequential"])
def test_looking_leaves_no_trace_and_happens_once(tmp_path: Path, mode: str) -> None:
    """The same draws, rates and modes as without it."""
    model = hugging("BertForSequenceClassification", **BERT)
    trainer = trainer_for(model, tmp_path, mode, ADAPTIVE)
    model.bert.embeddings.eval()
    site = next(module for module in model.modules() if "SelfAttention" in type(module).__name__)
    rates, calls, state = site._attentiondrop_site.monitor.controllers[0], [], torch.get_rng_state()
    before = rates.state()
    model.register_forward_hook(lambda module, *_: calls.append(module.training or torch.is_grad_enabled()))
    trainer._look_at_own_loss(model, classes(0, 4), torch.tensor(2))
    assert calls == [False] * (2 if mode == "sequential" else 1)
    assert torch.equal(torch.get_rng_state(), state) and rates.state() == before
    assert model.training and not model.bert.embeddings.training and model.classifier.training
    trainer.compute_loss(model, classes(0, 4), num_items_in_batch=torch.tensor(2))
    assert calls.count(False) == (2 if mode == "sequential" else 1)
