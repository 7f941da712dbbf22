"""Language modelling as a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..exhibits import Exhibits
from ..interface import Batch, DataSettings, EvaluationSettings, Judgement, ModelSettings, OnBatch, Task
from ..metrics import Metric, Metrics
from ..optional_packages import EXTRA
from .language_settings import DecoderSettings, TextSettings

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn

    from ....specs import Spec
    from .token_data import TokenData


class LanguageModelling(Task):
    """Text, of which a decoder of transformers predicts every next token. Heavy modules are imported when used."""

    name = "language"
    data_settings: ClassVar[type[DataSettings]] = TextSettings
    model_settings: ClassVar[type[ModelSettings]] = DecoderSettings
    evaluation_settings: ClassVar[type[EvaluationSettings]] = EvaluationSettings
    many_classes = True
    sample_unit = "tokens"
    extra = EXTRA
    metrics = Metrics(
        (
            Metric("loss", "loss", "nats", higher_is_better=False, digits=4, brief_digits=3, margin=0.005),
            Metric("perplexity", "perplexity", "", higher_is_better=False),
            Metric("bits_per_byte", "bits per byte", "bits", higher_is_better=False, digits=4, brief_digits=3),
        )
    )

    def packages(self, data: DataSettings) -> Sequence[str]:
        """transformers; and tokenizers, which it needs."""
        return ["transformers", "tokenizers"]

    def check(self, data: TextSettings, model: DecoderSettings) -> None:
        """A pretrained model needs its own tokenizer."""
        model.check_tokenizer(data.tokenizer)

    def special(self, data: Mapping[str, Any]) -> list[str]:
        """A test part that is not held out, and less text than there is."""
        found = []
        if data.get("held_out") == "whole" and data.get("name") == "file":
            found.append("the test part is the validation part, on which epochs were chosen")
        if data.get("limit"):
            found.append(f"at most {data['limit']} tokens of each part")
        return found

    def load_data(self, settings: TextSettings) -> TokenData:
        """Read, split and encode the text."""
        from .loading import load_text

        return load_text(settings)

    def build_model(
        self, settings: DecoderSettings, data: TokenData, rates: Mapping[str, float], seed: int
    ) -> nn.Module:
        """A decoder for the vocabulary and the blocks of the data."""
        from .decoders import build_decoder

        return build_decoder(settings, vocabulary=len(data.vocabulary), block=data.block, rates=rates, seed=seed)

    def examples(self, data: TokenData, count: int) -> Batch:
        """Tokens in the order of their numbers."""
        import torch

        from .no_cache import WITHOUT_CACHE

        tokens = torch.arange(count * (data.block + 1)).view(count, -1) % len(data.vocabulary)
        return Batch({"input_ids": tokens[:, :-1], **WITHOUT_CACHE}, tokens[:, 1:])

    def loss(self, output: Any, targets: Tensor, label_smoothing: float) -> tuple[Tensor, int]:
        """Cross entropy of the next tokens. Batches of training have a target everywhere."""
        from .perplexity import summed_loss

        return summed_loss(output.logits, targets, label_smoothing), targets.numel()

    def logits(self, output: Any) -> Tensor:
        """The logits of the next tokens."""
        logits: Tensor = output.logits
        return logits

    def count(self, targets: Tensor) -> int:
        """The number of tokens."""
        return targets.numel()

    def samples(self, data: TokenData, batch_size: int) -> int:
        """Tokens."""
        return super().samples(data, batch_size) * data.block

    def split(self, batch: Batch, parts: int) -> list[Batch]:
        """The batch split into equal parts, in order."""
        tokens = batch.inputs["input_ids"].chunk(parts)
        return [
            Batch({**batch.inputs, "input_ids": part}, targets)
            for part, targets in zip(tokens, batch.targets.chunk(parts), strict=True)
        ]

    def scores(
        self, model: nn.Module, data: TokenData, part: str, batch_size: int, accelerator: Accelerator | None
    ) -> dict[str, float]:
        """Loss, perplexity and bits per byte."""
        from .perplexity import scores_of_part

        return scores_of_part(model, data, part, batch_size, accelerator)

    def judge(
        self,
        model: nn.Module,
        data: TokenData,
        settings: EvaluationSettings,
        accelerator: Accelerator | None = None,
        on_batch: OnBatch | None = None,
    ) -> Judgement:
        """The scores of the parts that `data` holds."""
        found = {
            part: self.scores(model, data, part, settings.batch_size, accelerator)
            for part in ("validation", "test")
            if part in data.counts
        }
        return Judgement(found["validation"], found.get("test"))

    def exhibits(
        self, model: nn.Module, data: TokenData, settings: EvaluationSettings, spec: Spec | None
    ) -> Exhibits | None:
        """Continued text and a map of attention, for generated text only: other text may not be ours to show."""
        from .shown_text import exhibits

        return exhibits(model, data, spec) if data.generated else None
