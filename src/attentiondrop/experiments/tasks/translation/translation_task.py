"""Translation as a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..exhibits import Exhibits
from ..interface import Batch, DataSettings, EvaluationSettings, Judgement, ModelSettings, OnBatch, Task
from ..metrics import PERCENT, Metric, Metrics
from ..optional_packages import EXTRA
from .translation_settings import WMT14, SearchSettings, TransformerSettings, TranslationData

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn

    from ....specs import Spec
    from .encoder_decoder import EncoderDecoder
    from .sentence_pairs import SentencePairs, Targets


class TranslationTask(Task):
    """Sentences and their translations, with an encoder-decoder Transformer. Imports heavy modules only when used."""

    name = "translation"
    data_settings: ClassVar[type[DataSettings]] = TranslationData
    model_settings: ClassVar[type[ModelSettings]] = TransformerSettings
    evaluation_settings: ClassVar[type[EvaluationSettings]] = SearchSettings
    counts_vary = True
    shapes_vary = True
    many_classes = True
    most_shapes = 32
    sample_unit = "subwords"
    extra = EXTRA
    metrics = Metrics(
        (
            Metric("bleu", "BLEU", "", higher_is_better=True, margin=0.3),
            Metric("tokenised_bleu", "tokenised BLEU", "", higher_is_better=True),
            Metric("chrf", "chrF", "", higher_is_better=True, brief=False),
            Metric("nll", "NLL", "nats", higher_is_better=False, digits=3, brief_digits=3),
            Metric("perplexity", "perplexity", "", higher_is_better=False, digits=3, brief=False, compared=False),
            Metric("accuracy", "right subwords", PERCENT, True, factor=100, brief=False, compared=False),
        ),
        tie_break="nll",
        by_epoch="nll",
    )

    def packages(self, data: DataSettings) -> Sequence[str]:
        """Subwords and scores; for WMT14 without a folder also the library that reads it."""
        found = ["tokenizers", "sacrebleu", "sacremoses"]
        return [*found, "datasets"] if data.name == WMT14 and data.root is None else found

    def special(self, data: Mapping[str, Any]) -> list[str]:
        """Lower case, and a reduced number of pairs."""
        found = ["text in lower case"] if data.get("lowercase") is True else []
        return found + ([f"at most {data['limit']} pairs of each part"] if data.get("limit") else [])

    def notes(self, data: SentencePairs) -> Sequence[str]:
        """What was left out of the data."""
        return data.notes

    def load_data(self, settings: TranslationData) -> SentencePairs:
        """Read the text and encode it."""
        from .sentence_pairs import load_pairs

        return load_pairs(settings)

    def build_model(
        self, settings: TransformerSettings, data: SentencePairs, rates: Mapping[str, float], seed: int
    ) -> nn.Module:
        """An encoder-decoder with an embedding for the subwords of the data."""
        import torch

        from .encoder_decoder import EncoderDecoder

        layers, width, feedforward, heads = settings.sizes
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return EncoderDecoder(
                len(data.subwords),
                layers,
                width,
                feedforward,
                heads,
                dropout=rates.get("dropout", settings.dropout),
                drop_path=rates.get("drop_path", 0.0),
                pre=settings.norm == "pre",
            )

    def examples(self, data: SentencePairs, count: int) -> Batch:
        """Sentences of subwords one after another."""
        import torch

        from ..text.subwords import BEGIN, END
        from .sentence_pairs import Targets

        words = 3 + torch.arange(8 * count).reshape(count, 8) % (len(data.subwords) - 3)
        source, target, tokens = words.clone(), words.clone(), words.clone()
        source[:, -1], target[:, 0], tokens[:, -1] = END, BEGIN, END
        return Batch({"source": source, "target": target}, Targets(tokens, float(tokens.numel())))

    def loss(self, output: Tensor, targets: Targets, label_smoothing: float) -> tuple[Tensor, float | Tensor]:
        """Cross entropy of all subwords but padding."""
        from torch import Tensor
        from torch.nn.functional import cross_entropy

        from ..text.subwords import PAD

        total = cross_entropy(
            output.float().flatten(0, 1),
            targets.tokens.flatten(),
            ignore_index=PAD,
            reduction="sum",
            label_smoothing=label_smoothing,
        )
        # A process may get only the rows that fill a batch up. In a captured step the count is a tensor.
        count: Any = targets.counted
        return total, count.clamp(min=1.0) if isinstance(count, Tensor) else max(count, 1.0)

    def mask(self, targets: Targets) -> Tensor:
        """True where there is no padding."""
        from ..text.subwords import PAD

        return targets.tokens != PAD

    def count(self, targets: Targets) -> float:
        """Subwords without padding."""
        return targets.counted

    def split(self, batch: Batch, parts: int) -> list[Batch]:
        """Rows, in equal parts."""
        if parts == 1:
            return [batch]
        from ..text.subwords import PAD
        from .sentence_pairs import Targets

        columns = {name: tensor.chunk(parts) for name, tensor in batch.inputs.items()}
        return [
            Batch({name: chunks[number] for name, chunks in columns.items()}, Targets(tokens, float(count)))
            for number, tokens in enumerate(batch.targets.tokens.chunk(parts))
            for count in [(tokens != PAD).sum()]
        ]

    def smallest_batch(self, data: SentencePairs, batch_size: int) -> int:
        """Rows come in multiples of this number."""
        from .length_buckets import ROWS

        return ROWS

    def lengths(self, data: SentencePairs, batch_size: int) -> set[int]:
        """Those of the buckets."""
        return data.padded_lengths(batch_size)

    def samples(self, data: SentencePairs, batch_size: int) -> int:
        """Subwords of the target."""
        return data.subwords_of_epoch()

    def scores(
        self, model: nn.Module, data: SentencePairs, part: str, batch_size: int, accelerator: Accelerator | None
    ) -> dict[str, float]:
        """What can be measured without a search."""
        from .translating import teacher_scores

        return teacher_scores(model, data, part, batch_size, accelerator)

    def judge(
        self,
        model: nn.Module,
        data: SentencePairs,
        settings: SearchSettings,
        accelerator: Accelerator | None = None,
        on_batch: OnBatch | None = None,
    ) -> Judgement:
        """All metrics, with beam search."""
        from .translating import judge

        return judge(cast("EncoderDecoder", model), data, settings, accelerator, on_batch)

    def exhibits(
        self, model: nn.Module, data: SentencePairs, settings: SearchSettings, spec: Spec | None
    ) -> Exhibits | None:
        """Translations and attention maps, of generated sentences only: other text may not be ours to show."""
        from .shown_sentences import exhibits

        return exhibits(cast("EncoderDecoder", model), data, settings, spec) if data.generated else None
