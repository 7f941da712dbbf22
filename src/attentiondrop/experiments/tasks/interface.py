"""What a task is to everything around it. Training, records, tables and reports use this interface and nothing else.

This module loads no framework, so that a recipe can be checked and a report be written without one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from ...scores import ReliabilityDiagram, RobustnessReport
from ...validation import integer
from .metrics import Metrics

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor, nn


@dataclass(frozen=True)
class DataSettings:
    """What every `data` section of a recipe has: a name, and where files are."""

    name: str = ""
    root: str | None = None
    download: bool = False


@dataclass(frozen=True)
class ModelSettings:
    """What every `model` section of a recipe has: a name."""

    name: str = ""


@dataclass(frozen=True)
class EvaluationSettings:
    """What every `evaluation` section of a recipe has: how much is evaluated at once."""

    batch_size: int = 512
    #: Settings that need the test part. Runs that choose something are not given it, and have these values instead.
    WITHOUT_TEST: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        integer("batch_size", self.batch_size, minimum=1)


class Batch(NamedTuple):
    """What the model is given, a tensor or a dict of keyword arguments, and what it should make of it."""

    inputs: Any
    targets: Any


class Data(Protocol):
    """Data in the parts "train", "validation" and "test". Some of them may be held back.

    The order of training depends on (seed, epoch) alone, and torch's global generators are not touched. So a run can
    go on at any epoch. Of `world` processes, `rank` gets its share of every batch: the shares of all ranks together
    are the batch of a single process.
    """

    #: SHA-256 of each part.
    checksums: dict[str, str]
    #: Examples of each part.
    counts: dict[str, int]
    device: torch.device

    @property
    def words(self) -> str:
        """What an example is, for error messages: `images of 3 x 32 x 32 pixels`."""

    def having(self, *parts: str) -> Data:
        """These parts and no others."""

    def to(self, device: str | torch.device) -> Data:
        """The same data, given out on `device`."""

    def steps(self, batch_size: int) -> int:
        """Batches of an epoch."""

    def train_batches(
        self, *, seed: int, epoch: int, batch_size: int, rank: int = 0, world: int = 1
    ) -> Iterator[Batch]:
        """One epoch of training; `batch_size` counts all ranks together."""

    def batches(self, part: str, batch_size: int, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """A whole part, in order, as it is evaluated."""


class Judgement(NamedTuple):
    """How good a model is. What only the test part can tell is None where that part is held back."""

    validation: dict[str, float]
    test: dict[str, float] | None = None
    reliability: ReliabilityDiagram | None = None
    robustness: RobustnessReport | None = None


def forward(model: Callable[..., Any], inputs: Any) -> Any:
    """The output of a model, or of its `forward`, for the inputs of a batch."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


OnBatch = Callable[[int, int], None]


class Task(ABC):
    """Data, model, loss and metrics of one kind of problem. Tasks have no state; there is one object of each class."""

    name: ClassVar[str]
    metrics: ClassVar[Metrics]
    #: The classes of three sections of a recipe.
    data_settings: ClassVar[type[DataSettings]]
    model_settings: ClassVar[type[ModelSettings]]
    evaluation_settings: ClassVar[type[EvaluationSettings]]
    #: Whether batches of equal size may have unequal counts, as batches of sentences have.
    counts_vary: ClassVar[bool] = False

    @abstractmethod
    def packages(self, data: DataSettings) -> Sequence[str]:
        """The Python packages that these data need, beyond those that every command needs."""

    @abstractmethod
    def special(self, data: Mapping[str, Any]) -> list[str]:
        """What is unusual about a stored `data` section, in words for a report."""

    @abstractmethod
    def load_data(self, settings: Any) -> Any:
        """Read the data, on the CPU: a `Data`."""

    @abstractmethod
    def build_model(self, settings: Any, data: Any, rates: Mapping[str, float], seed: int) -> nn.Module:
        """A new model for the data, on the CPU.

        Its weights depend on `seed` alone. `rates` are those of the model itself that a method sets: `dropout` and
        `drop_path`.
        """

    @abstractmethod
    def examples(self, data: Any, count: int) -> Batch:
        """Made-up examples that a model of the data can be tried on."""

    @abstractmethod
    def loss(self, output: Any, targets: Any, label_smoothing: float) -> tuple[Tensor, int]:
        """The loss of a batch, summed, and what to divide it by."""

    def logits(self, output: Any) -> Tensor:
        """What a consistency loss compares: [batch, ..., classes]."""
        logits: Tensor = output.float()
        return logits

    def mask(self, targets: Any) -> Tensor | None:
        """[batch, ...], True at the positions that a consistency loss compares; None for all of them."""
        return None

    def count(self, targets: Any) -> int:
        """What the loss of a batch is divided by, known without computing it."""
        return len(targets)

    def split(self, batch: Batch, parts: int) -> list[Batch]:
        """The batch in equal parts, one after the other."""
        return [
            Batch(inputs, targets)
            for inputs, targets in zip(batch.inputs.chunk(parts), batch.targets.chunk(parts), strict=True)
        ]

    @abstractmethod
    def scores(
        self, model: nn.Module, data: Any, part: str, batch_size: int, accelerator: Accelerator | None
    ) -> dict[str, float]:
        """Every metric on one part; with several processes each one evaluates its share."""

    @abstractmethod
    def judge(
        self,
        model: nn.Module,
        data: Any,
        settings: Any,
        accelerator: Accelerator | None = None,
        on_batch: OnBatch | None = None,
    ) -> Judgement:
        """The final word on a model, on the parts that `data` holds."""
