"""The Trainer of transformers with the consistency loss: two perturbed passes over each batch, which should agree.

    python examples/transformers_trainer.py --spec "hard(p=0.1,k=5)+consistency(weight=0.5)"

A small BERT reads generated sentences and says which of two words comes first. The rate of hard masking grows over the
first fifth of training. Half a minute on one core.
"""

import argparse
import tempfile

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from attentiondrop.integrations.transformers import ConsistencyTrainer, ScheduleCallback
from attentiondrop.torch import attach

WORDS, LENGTH = 20, 10


def sentences(count: int, seed: int) -> list[dict[str, object]]:
    """Random words, with the words 1 and 2 at two places. The label says whether word 1 comes first."""
    draw = np.random.default_rng(seed)
    words = draw.integers(3, WORDS, (count, LENGTH))
    places = np.stack([draw.permutation(LENGTH)[:2] for _ in range(count)])
    words[np.arange(count)[:, None], places] = [1, 2]
    labels = (places[:, 0] < places[:, 1]).astype(int)
    return [{"input_ids": torch.tensor(row), "labels": int(label)} for row, label in zip(words, labels, strict=True)]


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--spec", default="hard(p=warmup(0.1,share=0.2),k=5)+consistency(weight=0.5)")
parser.add_argument("--epochs", type=int, default=12)
options = parser.parse_args()
torch.manual_seed(0)
size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = BertForSequenceClassification(BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **size))
attachment = attach(model, options.spec)
print(attachment)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=options.epochs, learning_rate=3e-3, per_device_train_batch_size=64, use_cpu=True,
        lr_scheduler_type="cosine", save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="epoch",
    )  # fmt: skip
    data = {"train_dataset": sentences(1000, seed=0), "eval_dataset": sentences(500, seed=1)}
    score = {"compute_metrics": lambda found: {"accuracy": (found[0].argmax(-1) == found[1]).mean()}}
    trainer = ConsistencyTrainer(model, arguments, callbacks=[ScheduleCallback(attachment)], **data, **score)
    trainer.train()
    print(f"accuracy on 500 held-out sentences: {trainer.evaluate()['eval_accuracy']:.3f}")
