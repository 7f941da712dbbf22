"""Commands, records and reports work with a second task, defined here: they know nothing about images."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.config.schema import TrainingSettings, build_recipe
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.report.terminal import show
from attentiondrop.experiments.report.write import write_summary
from attentiondrop.experiments.runs.finished_run import load_run
from attentiondrop.experiments.studies.certify import certify_run
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.studies.gradient_study import variance_of_run
from attentiondrop.experiments.studies.plan import read_study
from attentiondrop.experiments.tasks import registry
from attentiondrop.experiments.tasks.interface import (
    Batch,
    DataSettings,
    EvaluationSettings,
    Judgement,
    ModelSettings,
    Task,
)
from attentiondrop.experiments.tasks.metrics import Metric, Metrics
from attentiondrop.experiments.train.loop import Training

WORDS, PAD, LONGEST = 7, 0, 6


@dataclass(frozen=True)
class TokenSettings(DataSettings):
    name: str = "counting"
    sentences: int = 24


@dataclass(frozen=True)
class TokenModel(ModelSettings):
    name: str = "small"
    width: int = 8


class Tokens:
    """Sentences of different lengths. The target of each word is the next word of the vocabulary."""

    def __init__(self, parts: dict[str, Tensor], device: str = "cpu") -> None:
        self.parts, self.device = parts, torch.device(device)
        self.counts = {part: len(words) for part, words in parts.items()}
        self.checksums = {part: hashlib.sha256(words.numpy().tobytes()).hexdigest() for part, words in parts.items()}
        self.words = "sentences"

    def having(self, *parts: str) -> Tokens:
        return Tokens({part: self.parts[part] for part in parts})

    def to(self, device: Any) -> Tokens:
        return self

    def steps(self, batch_size: int) -> int:
        return max(1, self.counts["train"] // batch_size)

    def train_batches(self, *, seed: int, epoch: int, batch_size: int, rank: int = 0, world: int = 1) -> Iterator:
        order = torch.randperm(self.counts["train"], generator=torch.Generator().manual_seed(seed % 1000 + epoch))
        for step in range(self.steps(batch_size)):
            yield self._batch(self.parts["train"][order[step * batch_size : (step + 1) * batch_size]])

    def batches(self, part: str, batch_size: int, *, rank: int = 0, world: int = 1) -> Iterator:
        return (self._batch(words) for words in self.parts[part].split(batch_size))

    @staticmethod
    def _batch(words: Tensor) -> Batch:
        return Batch({"words": words}, torch.where(words == PAD, PAD, words % (WORDS - 1) + 1))


class Model(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 16, dropout, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(words), src_key_padding_mask=words == PAD))


class Counting(Task):
    name = "counting"
    data_settings, model_settings, evaluation_settings = TokenSettings, TokenModel, EvaluationSettings
    counts_vary = True
    metrics = Metrics(
        (
            Metric("perplexity", "perplexity", "", higher_is_better=False, digits=3, brief_digits=2),
            Metric("right", "right words", "%", higher_is_better=True, factor=100),
        )
    )

    def packages(self, data):
        return []

    def special(self, data):
        return [f"{data['sentences']} sentences"]

    def load_data(self, settings):
        generator = torch.Generator().manual_seed(0)
        parts = {}
        for part in ("train", "validation", "test"):
            words = torch.randint(1, WORDS, (settings.sentences, LONGEST), generator=generator)
            lengths = torch.randint(2, LONGEST + 1, (settings.sentences, 1), generator=generator)
            parts[part] = torch.where(torch.arange(LONGEST) < lengths, words, PAD)
        return Tokens(parts)

    def build_model(self, settings, data, rates, seed):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return Model(settings.width, rates.get("dropout", 0.0))

    def examples(self, data, count):
        return next(iter(data.batches("train", count)))

    def loss(self, output, targets, label_smoothing):
        total = cross_entropy(output.mT, targets, ignore_index=PAD, reduction="sum", label_smoothing=label_smoothing)
        return total, self.count(targets)

    def mask(self, targets):
        return targets != PAD

    def count(self, targets):
        return int((targets != PAD).sum())

    def split(self, batch, parts):
        words, targets = batch.inputs["words"].chunk(parts), batch.targets.chunk(parts)
        return [Batch({"words": each}, target) for each, target in zip(words, targets, strict=True)]

    @torch.no_grad()
    def scores(self, model, data, part, batch_size, accelerator):
        model.eval()
        total, right, count = 0.0, 0, 0
        for inputs, targets in data.batches(part, batch_size):
            output = model(**inputs)
            total += self.loss(output, targets, 0.0)[0].item()
            right += int(((output.argmax(-1) == targets) & (targets != PAD)).sum())
            count += self.count(targets)
        return {"perplexity": 2.718281828 ** (total / count), "right": right / count}

    def judge(self, model, data, settings, accelerator=None, on_batch=None):
        test = self.scores(model, data, "test", settings.batch_size, None) if "test" in data.counts else None
        return Judgement(self.scores(model, data, "validation", settings.batch_size, None), test)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Task:
    task = Counting()
    monkeypatch.setitem(registry.TASKS, task.name, task)
    return task


def recipe_of(**training: Any):
    return build_recipe(
        {
            "name": "counting",
            "size": "",
            "task": "counting",
            "training": {"epochs": 3, "batch_size": 8, "learning_rate": 0.02, "device": "cpu"} | training,
            "measure": {"probes": 2, "batches": 2},
            "tuning": {"trials": 2},
        }
    )


def test_a_whole_comparison_of_another_task(counting, listener, tmp_path: Path) -> None:
    recipe = recipe_of(accumulate=2)
    found = compare(recipe, ["none", "dropkey", "dropout+consistency"], 2, tmp_path, listener)
    assert all(entry.method for entry in found.methods)
    assert any(line.startswith("none, seed 0: test perplexity ") for line in listener.lines)
    summary = summarise(read_study(tmp_path))
    assert [row.count("finished") for row in summary.rows] == [2, 2, 2]
    out = io.StringIO()
    show(summary, Console(file=out, width=120))
    text = out.getvalue()
    assert "perplexity" in text and "right words %" in text and "(lower is better)" in text
    paths = write_summary(summary)
    page, markdown = paths.html.read_text(), paths.markdown.read_text()
    assert "Validation perplexity" in page and "24 sentences" in page and "Difference [95" in page
    assert "test_perplexity" in paths.csv.read_text() and "perplexity_difference" in paths.csv.read_text()
    for written in (text, page, markdown):
        assert "accuracy" not in written.lower() and "image" not in written.lower()


def test_the_lower_value_wins(counting) -> None:
    better, worse = {"perplexity": 1.5, "right": 0.1}, {"perplexity": 1.6, "right": 0.9}
    assert counting.metrics.merit(better) > counting.metrics.merit(worse)


def test_accumulated_parts_with_unequal_counts_are_the_whole_batch(counting, tmp_path: Path) -> None:
    losses, heads = [], []
    for accumulate in (1, 4):
        training = Training(
            recipe_of(accumulate=accumulate, epochs=2),
            read_method("none"),
            0,
            counting.load_data(TokenSettings()),
            tmp_path / str(accumulate),
        )
        (tmp_path / str(accumulate)).mkdir()
        losses.append([epoch.train_loss for epoch in training.run(lambda epoch: None)])
        heads.append(training.plain.head.weight)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    torch.testing.assert_close(heads[0], heads[1], rtol=1e-3, atol=1e-4)


def test_what_needs_single_examples_is_refused(counting, listener, tmp_path: Path) -> None:
    compare(dataclasses.replace(recipe_of(), tuning=build_recipe({}).tuning), ["none"], 1, tmp_path, listener)
    folder = tmp_path / "runs" / "none" / "seed0"
    assert load_run(folder).task is counting
    with pytest.raises(
        ArgumentError, match="run: expected one of a task that measures accuracy, received one of count"
    ):
        certify_run(folder)
    with pytest.raises(ArgumentError, match="run: expected one of a task with examples in one tensor, such as im"):
        variance_of_run(folder)


def test_sections_belong_to_the_task(counting) -> None:
    with pytest.raises(ArgumentError, match=r"data.label_noise: no such setting. There are name, root, download, sent"):
        build_recipe({"task": "counting", "data": {"label_noise": 0.1}})
    with pytest.raises(ArgumentError, match="task 'countin': no such task, did you mean 'counting'"):
        build_recipe({"task": "countin"})
    with pytest.raises(
        ArgumentError, match="data: expected the ImageSettings of the task classification, received Tok"
    ):
        dataclasses.replace(build_recipe({}), data=TokenSettings())
    assert recipe_of().training == TrainingSettings(3, 8, 0.02, device="cpu")


def test_only_text_has_thousands_of_classes() -> None:
    """`training.compile` compiles the loss of these tasks, too."""
    assert {name for name, task in registry.TASKS.items() if task.many_classes} == {"language", "translation"}


def test_metrics_have_their_directions_and_choose_epochs() -> None:
    lower = {"nll", "perplexity", "loss", "bits_per_byte", "ece", "ece_scaled", "brier"}
    higher = {"accuracy", "top5", "bleu", "tokenised_bleu", "chrf"}
    for task in registry.TASKS.values():
        assert {metric.name for metric in task.metrics.all if metric.higher_is_better} <= higher
        assert {metric.name for metric in task.metrics.all if not metric.higher_is_better} <= lower
    choosing = {name: task.metrics.each_epoch.name for name, task in registry.TASKS.items()}
    classes = {"classification": "accuracy", "text-classification": "accuracy"}
    assert choosing == classes | {"translation": "nll", "language": "loss"}
