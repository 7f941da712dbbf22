"""LoRA through PEFT: attach before or after wrapping, train only the adapters, merge them at the end."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop.torch import attach, consistency_loss, detach

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

HARD = ad.HardMasking(p=0.5, k=2)
WORDS = torch.randint(3, 50, (4, 8), generator=torch.Generator().manual_seed(0))


def base() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=50, initializer_range=0.5, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_labels=3,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def with_lora(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))


def logits(model: nn.Module, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return model(WORDS).logits


@pytest.mark.parametrize("first", ["attach", "wrap"])
def test_only_the_adapters_learn_and_evaluation_is_the_unattached_model(first: str) -> None:
    plain = with_lora(base())
    model = base()
    if first == "attach":
        attachment = attach(model, HARD)
        model = with_lora(model)
    else:
        model = with_lora(model)
        attachment = attach(model, HARD)
    assert len(attachment.sites) == 2 and model.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(logits(model.eval()), logits(plain.eval()))
    model.train()
    assert not torch.equal(logits(model, 0), logits(model, 1))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):  # the first step changes only one of two factors, since the other is zero
        logits(model).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed and all("lora_" in name or "classifier" in name for name in changed)
    # The adapters load into a model that was never attached.
    plain.load_state_dict(model.state_dict())
    assert torch.equal(logits(model.eval()), logits(plain.eval()))


def test_switched_off_merged_and_saved_adapters(tmp_path: Path) -> None:
    model = with_lora(base())
    attach(model, HARD)
    for parameter in model.parameters():
        parameter.data += 0.1
    model.eval()
    tuned = logits(model)
    with model.disable_adapter():
        assert not torch.allclose(logits(model), tuned)
    model.save_pretrained(tmp_path)
    twin = copy.deepcopy(model)
    assert torch.equal(logits(twin), tuned) and torch.equal(logits(pickle.loads(pickle.dumps(model))), tuned)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged), tuned, rtol=1e-4, atol=1e-5)
    merged.train()
    assert not torch.equal(logits(merged, 0), logits(merged, 1))  # the sites are still there
    assert detach(merged) == 2 and torch.equal(logits(merged, 0), logits(merged, 1))
    assert sorted(path.name for path in tmp_path.glob("adapter*")) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


@pytest.mark.parametrize("mode", ["batch", "sequential", "shared"])
def test_the_consistency_loss_of_a_model_with_adapters(mode: str) -> None:
    model = with_lora(base()).train()
    attach(model, HARD)
    labels = torch.tensor([0, 1, 2, 0])
    result = consistency_loss(
        model, {"input_ids": WORDS}, lambda out: nn.functional.cross_entropy(out.logits, labels), "consistency", mode
    )
    result.loss.backward()
    assert result.divergence > 0
    assert all((p.grad is not None) == p.requires_grad for p in model.parameters())


def test_the_trainer_trains_adapters(tmp_path: Path) -> None:
    from attentiondrop.integrations.transformers import ConsistencyTrainer

    model = with_lora(base())
    attach(model, ad.parse("hard(p=0.5,k=2)+consistency(weight=0.5)"))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    examples = [{"input_ids": words, "labels": index % 3} for index, words in enumerate(WORDS)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=2, learning_rate=0.1, report_to=[], use_cpu=True,
        save_strategy="no", logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    trainer = ConsistencyTrainer(model, arguments, train_dataset=examples)
    trainer.train()
    changed = {
        name for name, parameter in model.named_parameters() if not torch.equal(parameter.detach(), before[name])
    }
    assert changed and all("lora_" in name or "classifier" in name for name in changed)
    assert any("divergence" in entry for entry in trainer.state.log_history)
