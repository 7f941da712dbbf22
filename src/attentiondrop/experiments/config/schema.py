"""What all runs of a study share: data, model, training, evaluation. Typed, validated, in plain JSON types on disk."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import bad_argument
from ...validation import integer, number, one_of
from ..files.typed_settings import SWITCH, build_settings
from ..tasks.interface import DataSettings, EvaluationSettings, ModelSettings, Task
from ..tasks.registry import DEFAULT, TASKS, find_task, task_of

#: What can be a folder and stays where it is put.
_FOLDER = re.compile(r"\w[\w .+-]{0,99}")
_MOST_SEEDS = 10_000


@dataclass(frozen=True)
class TrainingSettings:
    """The loop: AdamW, a linear warm-up, then half a cosine to zero. `batch_size` counts all processes together."""

    epochs: int = 20
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    #: Share of all steps.
    warmup: float = 0.1
    label_smoothing: float = 0.0
    #: The largest norm of a gradient.
    clip: float | None = None
    #: Each batch in so many parts, one after the other.
    accumulate: int = 1
    #: Decay of an average of the weights, which is then what is evaluated.
    ema: float | None = None
    precision: str = "float32"
    compile: bool = False
    #: Whether steps are captured as a CUDA graph and replayed. `auto`: on CUDA, in a single process; what cannot be
    #: captured runs as it is, after a line that says why. `on`: that is an error.
    capture: str = field(default="auto", metadata={SWITCH: True})
    device: str = "auto"
    #: With several processes: `ddp`, or `fsdp` to share out weights and optimiser too.
    parallel: str = "ddp"
    #: Which weights are tested: those of the epoch that did best on the validation part, or the last.
    select: str = "best"
    #: Also keep the weights of every so manyth epoch, which `attentiondrop variance` draws its curve from.
    keep_every: int | None = None
    #: How the views of a consistency loss are computed, as in `attentiondrop.torch.consistency_loss`.
    consistency_mode: str = "batch"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate"):
            integer(name, getattr(self, name), minimum=1)
        number("weight_decay", self.weight_decay, minimum=0.0)
        number("warmup", self.warmup, minimum=0.0, maximum=1.0)
        number("label_smoothing", self.label_smoothing, minimum=0.0, maximum=1.0)
        if self.ema is not None:
            number("ema", self.ema, minimum=0.0, maximum=1.0)
        for name in ("learning_rate", "clip"):
            value = getattr(self, name)
            if value is not None and not number(name, value, minimum=0.0) > 0:
                raise bad_argument(name, "a number > 0", value)
        if self.keep_every is not None:
            integer("keep_every", self.keep_every, minimum=1)
        if self.batch_size % self.accumulate:
            raise bad_argument("accumulate", f"a divisor of the batch size {self.batch_size}", self.accumulate)
        one_of("precision", self.precision, ("float32", "bfloat16", "float16"))
        one_of("capture", self.capture, ("auto", "on", "off"))
        one_of("device", self.device, ("auto", "cpu", "cuda", "mps"))
        one_of("parallel", self.parallel, ("ddp", "fsdp"))
        one_of("select", self.select, ("best", "last"))
        one_of("consistency_mode", self.consistency_mode, ("batch", "sequential", "shared"))


@dataclass(frozen=True)
class MeasureSettings:
    """What is measured during training, at `probes` epochs spread evenly: gradient variance and attention entropy."""

    probes: int = 5
    #: Mini-batches for a gradient variance.
    batches: int = 4

    def __post_init__(self) -> None:
        integer("probes", self.probes, minimum=0)
        integer("batches", self.batches, minimum=2)


@dataclass(frozen=True)
class TuningSettings:
    """How `compare` tunes: so many settings of each method, judged on the validation part with a seed of its own."""

    trials: int = 0
    #: Epochs of a trial; those of the recipe by default.
    epochs: int | None = None
    seed: int = 1000
    #: Method -> field -> values, in place of the built-in grids.
    grids: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        integer("trials", self.trials, minimum=0)
        integer("seed", self.seed, minimum=0)
        if self.epochs is not None:
            integer("epochs", self.epochs, minimum=1)


@dataclass(frozen=True)
class Recipe:
    """Settings of a study; only method and seed differ between its runs.

    >>> Recipe(training=TrainingSettings(epochs=3)).to_dict()["training"]["epochs"]
    3
    """

    name: str = "digits"
    size: str = "demo"
    #: What is learned: the name of a task. `data`, `model` and `evaluation` are of its classes.
    task: str = DEFAULT
    data: DataSettings = field(default_factory=TASKS[DEFAULT].data_settings)
    model: ModelSettings = field(default_factory=TASKS[DEFAULT].model_settings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    evaluation: EvaluationSettings = field(default_factory=TASKS[DEFAULT].evaluation_settings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    tuning: TuningSettings = field(default_factory=TuningSettings)
    #: What `compare` compares when nobody says otherwise; the first one is the baseline.
    methods: tuple[str, ...] = ("none", "dropout", "hard", "blur")
    #: What `ablate` varies: method -> field -> values.
    ablations: dict[str, Any] = field(default_factory=dict)
    seeds: int = 3

    def __post_init__(self) -> None:
        for section, cls in sections_of(find_task(self.task)).items():
            if not isinstance(getattr(self, section), cls):
                raise bad_argument(section, f"the {cls.__name__} of the task {self.task}", getattr(self, section))
        if integer("seeds", self.seeds, minimum=1) > _MOST_SEEDS:
            raise bad_argument("seeds", f"an integer of at most {_MOST_SEEDS}", self.seeds)
        # Both name the folder of the results, which must not lead elsewhere.
        for name, text in (("name", self.name), ("size", self.size)):
            if not _FOLDER.fullmatch(text) and (text or name == "name"):
                raise bad_argument(
                    name, "a name of at most 100 letters, digits, spaces and . _ + -, a letter or digit first", text
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain


def sections_of(task: Task) -> dict[str, type[Any]]:
    """The sections of a recipe that differ between tasks, and the class that each one has in this task."""
    return {"data": task.data_settings, "model": task.model_settings, "evaluation": task.evaluation_settings}


def build_recipe(content: Any) -> Recipe:
    """The recipe that a nested mapping describes; it may name its task.

    >>> build_recipe({"data": {"name": "cifar10", "root": "data"}}).task
    'classification'
    """
    if not isinstance(content, Mapping):
        raise bad_argument("recipe", "a mapping of settings", content)
    kinds = sections_of(task_of(content))
    return build_settings(Recipe, {section: {} for section in kinds} | dict(content), kinds=kinds)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
