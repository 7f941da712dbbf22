"""Text classification as a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..interface import Batch, DataSettings, EvaluationSettings, Judgement, ModelSettings, OnBatch, Task
from ..metrics import CLASS_METRICS
from ..optional_packages import EXTRA
from .labelled_settings import ClassifierSettings, LabelledSettings

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn

    from .labelled_data import LabelledData


class TextClassification(Task):
    """Texts, each with one class; models of transformers. Heavy modules are imported only when they are used."""

    name = "text-classification"
    data_settings: ClassVar[type[DataSettings]] = LabelledSettings
    model_settings: ClassVar[type[ModelSettings]] = ClassifierSettings
    evaluation_settings: ClassVar[type[EvaluationSettings]] = EvaluationSettings
    extra = EXTRA
    metrics = CLASS_METRICS

    def packages(self, data: DataSettings) -> Sequence[str]:
        """transformers; and tokenizers, which it needs."""
        return ["transformers", "tokenizers"]

    def check(self, data: LabelledSettings, model: ClassifierSettings) -> None:
        """A pretrained model needs its own tokenizer."""
        model.check_tokenizer(data.tokenizer)

    def special(self, data: Mapping[str, Any]) -> list[str]:
        """A reduced number of texts."""
        fraction = data.get("train_fraction")
        reduced = isinstance(fraction, float) and fraction != 1.0
        return [f"{100 * fraction:g} % of the training texts"] if reduced else []  # type: ignore[operator]

    def notes(self, data: LabelledData) -> Sequence[str]:
        """How many texts were cut off."""
        return data.notes

    def load_data(self, settings: LabelledSettings) -> LabelledData:
        """Read the texts."""
        from .labelled_data import load_labelled

        return load_labelled(settings)

    def build_model(
        self, settings: ClassifierSettings, data: LabelledData, rates: Mapping[str, float], seed: int
    ) -> nn.Module:
        """A classifier for the tokens and classes of the data."""
        from .text_classifiers import build_classifier

        return build_classifier(settings, data, rates, seed)

    def examples(self, data: LabelledData, count: int) -> Batch:
        """Tokens in the order of their numbers."""
        import torch

        shape = count, data.tokens["train"].shape[1]
        tokens = torch.arange(shape[0] * shape[1]).view(shape) % data.vocabulary
        return Batch(
            {"input_ids": tokens, "attention_mask": torch.ones(shape, dtype=torch.long)},
            torch.arange(count) % len(data.classes),
        )

    def loss(self, output: Any, targets: Tensor, label_smoothing: float) -> tuple[Tensor, int]:
        """Cross entropy."""
        from torch.nn.functional import cross_entropy

        logits = self.logits(output).float()
        return cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing), len(targets)

    def logits(self, output: Any) -> Tensor:
        """The logits of the classes."""
        logits: Tensor = output.logits
        return logits

    def split(self, batch: Batch, parts: int) -> list[Batch]:
        """The batch split into equal parts, in order."""
        columns = {name: tensor.chunk(parts) for name, tensor in batch.inputs.items()}
        return [
            Batch({name: chunks[number] for name, chunks in columns.items()}, targets)
            for number, targets in enumerate(batch.targets.chunk(parts))
        ]

    def scores(
        self, model: nn.Module, data: LabelledData, part: str, batch_size: int, accelerator: Accelerator | None
    ) -> dict[str, float]:
        """Accuracy, likelihood and calibration."""
        from ..class_scores import scores_of_part

        return scores_of_part(model, data, part, batch_size, accelerator, self.logits)

    def judge(
        self,
        model: nn.Module,
        data: LabelledData,
        settings: EvaluationSettings,
        accelerator: Accelerator | None = None,
        on_batch: OnBatch | None = None,
    ) -> Judgement:
        """Scores and, on the test part, a reliability diagram."""
        from ..class_scores import judge_classes

        return judge_classes(model, data, settings.batch_size, accelerator, self.logits)
