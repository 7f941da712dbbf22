"""The interface of a task. Training, records, tables and reports use only this interface.

This module loads no framework, so that checking a recipe and writing a report need none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from ...scores import ReliabilityDiagram, RobustnessReport
from ...validation import integer
from .exhibits import Exhibits
from .metrics import Metrics

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor, nn

    from ...specs import Spec


@dataclass(frozen=True)
class DataSettings:
    """Settings of every `data` section of a recipe: a name, and where the files are."""

    name: str = ""
    #: Where the files are.
    root: str | None = None
    #: Whether missing files may be downloaded.
    download: bool = False

    def without_effect(self) -> tuple[str, ...]:
        """Settings that change nothing beside the others. They are not shown to people."""
        return ()

    def for_seed(self, seed: int) -> DataSettings:
        """The settings of the data that a run with this seed uses. What differs must not change `Data.checksums`."""
        return self


@dataclass(frozen=True)
class ModelSettings:
    """Settings of every `model` section of a recipe: a name."""

    name: str = ""


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of every `evaluation` section of a recipe: the batch size."""

    #: How many examples an evaluation takes at once.
    batch_size: int = 512
    #: Values of settings that need the test part, for runs without it (tuning and ablation).
    WITHOUT_TEST: ClassVar[dict[str, Any]] = {}
    #: Whether these settings change scores on the validation part, and so the choice of settings in tuning.
    CHANGE_VALIDATION: ClassVar[bool] = False

    def __post_init__(self) -> None:
        integer("batch_size", self.batch_size, minimum=1)

    def beside_scores(self) -> tuple[str, ...]:
        """What the final test does beside scoring once, in words. An estimate of its time leaves this out."""
        return ()


class Batch(NamedTuple):
    """Inputs of the model (a tensor, or a dict of keyword arguments), and the targets."""

    inputs: Any
    targets: Any


class Data(Protocol):
    """Data in the parts "train", "validation" and "test". Some parts may be missing, see `having`.

    The training order depends only on (seed, epoch), and torch's global generators are not touched. So a run can
    resume at any epoch. With `world` processes, each `rank` gets its share of every batch: the shares of all ranks
    together are the batch of a single process.
    """

    #: Part -> SHA-256.
    checksums: dict[str, str]
    #: Part -> number of examples.
    counts: dict[str, int]
    device: torch.device

    @property
    def words(self) -> str:
        """What an example is, for error messages: `images of 3 x 32 x 32 pixels`."""

    def having(self, *parts: str) -> Data:
        """The data with only these parts."""

    def to(self, device: str | torch.device) -> Data:
        """The same data with batches on `device`."""

    def steps(self, batch_size: int) -> int:
        """The number of batches in an epoch."""

    def train_batches(
        self, *, seed: int, epoch: int, batch_size: int, rank: int = 0, world: int = 1
    ) -> Iterator[Batch]:
        """The batches of one training epoch; `batch_size` counts all ranks together."""

    def batches(self, part: str, batch_size: int, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """The batches of a whole part, in order, for evaluation."""


@runtime_checkable
class ExampleData(Data, Protocol):
    """Data of tensors of one shape, each with one class: what certificates and gradient studies need."""

    @property
    def bytes_to_train(self) -> int:
        """What the inputs of the training part take as float32."""

    def published(self, part: str) -> Iterator[Batch]:
        """A whole part as it was published, in order: no other part had an influence on it."""

    def independent(self, part: str) -> Batch:
        """A whole part at once, scaled without any statistics of the training part."""

    def sample(self, examples: int, seed: int) -> Batch:
        """Some of the training part, without augmentation."""


class Judgement(NamedTuple):
    """The scores of a model. Fields that need the test part are None if the data does not hold it."""

    validation: dict[str, float]
    test: dict[str, float] | None = None
    reliability: ReliabilityDiagram | None = None
    robustness: RobustnessReport | None = None
    #: Metric -> how exactly it was computed.
    signatures: dict[str, str] | None = None


def forward(model: Callable[..., Any], inputs: Any) -> Any:
    """The output of a model, or of its `forward`, for the inputs of a batch."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


OnBatch = Callable[[int, int], None]


class Task(ABC):
    """Data, model, loss and metrics of one kind of problem. A task has no state; each class has one object."""

    name: ClassVar[str]
    metrics: ClassVar[Metrics]
    #: The classes of three sections of a recipe.
    data_settings: ClassVar[type[DataSettings]]
    model_settings: ClassVar[type[ModelSettings]]
    evaluation_settings: ClassVar[type[EvaluationSettings]]
    #: Whether `count` may differ between batches of equal size, as for sentences.
    counts_vary: ClassVar[bool] = False
    #: Whether batches have many shapes, as those of sentences: a compiled model then has one code for all of them.
    shapes_vary: ClassVar[bool] = False
    #: Whether there are thousands of classes, such as subwords. Then the loss is compiled with the model.
    many_classes: ClassVar[bool] = False
    #: How many shapes of a batch may get a CUDA graph of their own. Batches of sentences have a shape for each bucket.
    most_shapes: ClassVar[int] = 4
    #: What `samples` counts.
    sample_unit: ClassVar[str] = "samples"
    #: The extra of this package that installs `packages`.
    extra: ClassVar[str] = "experiments"

    @abstractmethod
    def packages(self, data: DataSettings) -> Sequence[str]:
        """The Python packages that this data needs, beyond those that every command needs."""

    def check(self, data: Any, model: Any) -> None:  # noqa: B027 (most tasks refuse nothing here)
        """Raise if the sections `data` and `model` of a recipe do not fit together."""

    @abstractmethod
    def special(self, data: Mapping[str, Any]) -> list[str]:
        """What is unusual about a stored `data` section, in words, for a report."""

    def warnings(self, model: nn.Module, data: Any) -> Sequence[str]:
        """Lines for people that a command says before its first run, if a model is likely not what they meant."""
        return ()

    def notes(self, data: Any) -> Sequence[str]:
        """Lines for people that a run says when it begins, such as what of the data was left out."""
        return ()

    @abstractmethod
    def load_data(self, settings: Any) -> Any:
        """Read the data, on the CPU. Returns a `Data`."""

    @abstractmethod
    def build_model(self, settings: Any, data: Any, rates: Mapping[str, float], seed: int) -> nn.Module:
        """A new model for the data, on the CPU.

        Its weights depend only on `seed`. `rates` are the rates that a method sets in the model: `dropout` and
        `drop_path`.
        """

    @abstractmethod
    def examples(self, data: Any, count: int) -> Batch:
        """Artificial examples, to try a model on before any training."""

    @abstractmethod
    def loss(self, output: Any, targets: Any, label_smoothing: float) -> tuple[Tensor, float | Tensor]:
        """The summed loss of a batch, and the count to divide it by: a number or, in a captured step, a tensor.

        If the count differs between batches, it should be a part of the targets, as a float: a captured step can
        neither count on the host nor wait for the device.
        """

    def logits(self, output: Any) -> Tensor:
        """What a consistency loss compares: [batch, ..., classes], in the precision of the output."""
        logits: Tensor = output
        return logits

    def mask(self, targets: Any) -> Tensor | None:
        """[batch, ...], True at the positions that a consistency loss compares; None for all of them."""
        return None

    def count(self, targets: Any) -> float:
        """The count that the loss of a batch is divided by, without computing the loss."""
        return len(targets)

    def smallest_batch(self, data: Any, batch_size: int) -> int:
        """The examples in the smallest training batch: processes and accumulated parts must share them evenly."""
        count: int = data.counts["train"]
        return min(batch_size, count)

    def drawn_checksum(self, data: Any) -> str | None:
        """A checksum of what the seed of a run drew to train on; None if `Data.checksums` tells it already."""
        return None

    def lengths(self, data: Any, batch_size: int) -> set[int] | None:
        """The lengths of sequences in the batches of training, if they differ; else None."""
        return None

    def samples(self, data: Any, batch_size: int) -> int:
        """What an epoch trains on, in `sample_unit`, for the throughput."""
        steps: int = data.steps(batch_size)
        return steps * self.smallest_batch(data, batch_size)

    def split(self, batch: Batch, parts: int) -> list[Batch]:
        """The batch split into equal parts, in order."""
        return [
            Batch(inputs, targets)
            for inputs, targets in zip(batch.inputs.chunk(parts), batch.targets.chunk(parts), strict=True)
        ]

    @abstractmethod
    def scores(
        self, model: nn.Module, data: Any, part: str, batch_size: int, accelerator: Accelerator | None
    ) -> dict[str, float]:
        """Every metric on one part. With several processes, each evaluates its share."""

    @abstractmethod
    def judge(
        self,
        model: nn.Module,
        data: Any,
        settings: Any,
        accelerator: Accelerator | None = None,
        on_batch: OnBatch | None = None,
    ) -> Judgement:
        """The final scores of a model, on the parts that `data` holds."""

    def exhibits(self, model: nn.Module, data: Any, settings: Any, spec: Spec | None) -> Exhibits | None:
        """What a report shows of a final model; None for nothing. `spec` is what the method attaches in training.

        Show only data that may be passed on: generated data, or data with a licence that allows it.
        """
        return None
