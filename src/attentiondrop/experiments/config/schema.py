"""The recipe: settings that all runs of a study share. They are typed, validated, and stored in plain JSON types."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import bad_argument
from ...validation import integer, number, one_of
from ..files.typed_settings import SWITCH, build_settings
from ..methods.grids import POINTS
from ..tasks.interface import DataSettings, EvaluationSettings, ModelSettings, Task
from ..tasks.registry import DEFAULT, TASKS, find_task, task_of

#: A name that can be a folder and cannot lead to another place.
_FOLDER = re.compile(r"\w[\w .+-]{0,99}")
_MOST_SEEDS = 10_000
_KINDS = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class TrainingSettings:
    """Training: AdamW, a linear warm-up, then a decay. `batch_size` counts all processes together.

    The batch size is a number of examples; for translation it is a number of subwords.
    """

    #: Passes over the training part.
    epochs: int = 20
    #: Examples (subwords for translation) in one step of the optimiser, over all processes.
    batch_size: int = 64
    #: The largest learning rate, at the end of the warm-up.
    learning_rate: float = 1e-3
    #: The weight decay of AdamW.
    weight_decay: float = 1e-2
    #: The warm-up as a share of all steps.
    warmup: float = 0.1
    #: After the warm-up: `cosine` (half a cosine to zero) or `inverse_sqrt` (1 / sqrt(step)).
    schedule: str = "cosine"
    #: The decays of AdamW's averages of the gradient and of its square.
    betas: tuple[float, ...] = (0.9, 0.999)
    #: The share of a target that is spread evenly over all classes.
    label_smoothing: float = 0.0
    #: The largest norm of the gradient; a larger one is scaled down.
    clip: float | None = None
    #: Split each batch into this many parts and add up their gradients.
    accumulate: int = 1
    #: Decay of a moving average of the weights. If set, the average is evaluated.
    ema: float | None = None
    #: The last weights are the mean of the weights after each of this many last epochs. `select: last` tests them.
    average_last: int = 1
    #: `float32`, `bfloat16` or `float16`. The latter two compute in mixed precision.
    precision: str = "float32"
    #: Whether the model is compiled with `torch.compile`.
    compile: bool = False
    #: Whether the loss is compiled, which takes seconds. `null`: with the model, in tasks with thousands of classes.
    compile_loss: bool | None = None
    #: Whether steps are captured as a CUDA graph and replayed. `auto`: on CUDA, in a single process; what cannot be
    #: captured runs as it is, after a line that says why. `on`: that is an error.
    capture: str = field(default="auto", metadata={SWITCH: True})
    #: `cpu`, `cuda`, `mps`, or `auto`: an accelerator if there is one.
    device: str = "auto"
    #: With several processes: `ddp`, or `fsdp` to split weights and optimiser between the processes. On CPUs,
    #: accelerate splits nothing: there, `fsdp` is `ddp`.
    parallel: str = "ddp"
    #: Which weights are tested: those of the best epoch on the validation part, or of the last epoch.
    select: str = "best"
    #: Score the validation part after every `validate_every`-th epoch, and after the last: only these can be the best.
    validate_every: int = 1
    #: Write the state to resume from after every `save_every`-th epoch.
    save_every: int = 1
    #: Also keep the weights of every `keep_every`-th epoch. `attentiondrop variance` uses them for its curve.
    keep_every: int | None = None
    #: How the views of a consistency loss are computed, as in `attentiondrop.torch.consistency_loss`.
    consistency_mode: str = "batch"
    #: Attach methods only to attention of these kinds: `encoder`, `decoder` (their self-attention), `cross`.
    kinds: tuple[str, ...] | None = None
    #: Whether methods without an attention spec also run in this library's kernels (`attentiondrop.presets.plain`). The
    #: results are the same up to rounding. The kernels are for NVIDIA GPUs, and for up to 256 tokens.
    own_kernels: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "validate_every", "save_every"):
            integer(name, getattr(self, name), minimum=1)
        number("weight_decay", self.weight_decay, minimum=0.0)
        number("warmup", self.warmup, minimum=0.0, maximum=1.0)
        number("label_smoothing", self.label_smoothing, minimum=0.0, maximum=1.0)
        if self.ema is not None:
            number("ema", self.ema, minimum=0.0, maximum=1.0)
        if integer("average_last", self.average_last, minimum=1) > 1 and self.ema is not None:
            raise bad_argument("average_last", "1 with training.ema, which is another average", self.average_last)
        if len(self.betas) != 2 or not all(0.0 <= number("betas", beta, 0.0, 1.0) < 1.0 for beta in self.betas):
            raise bad_argument("betas", "two numbers in [0, 1)", self.betas)
        one_of("schedule", self.schedule, ("cosine", "inverse_sqrt"))
        if self.kinds is not None and (not self.kinds or not set(self.kinds) <= {*_KINDS}):
            raise bad_argument("kinds", f"null, or some of {', '.join(_KINDS)}", self.kinds)
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
    """Measurements during training, at `probes` evenly spread epochs: gradient variance and attention entropy."""

    #: At how many epochs something is measured. 0 measures nothing.
    probes: int = 5
    #: How many mini-batches a gradient variance is computed from.
    batches: int = 4

    def __post_init__(self) -> None:
        integer("probes", self.probes, minimum=0)
        integer("batches", self.batches, minimum=2)


@dataclass(frozen=True)
class TuningSettings:
    """How `compare` tunes: it tries `trials` settings of each method on the validation part, with a separate seed."""

    #: How many settings of each method are tried. 0: no tuning, each method with the values it is given.
    trials: int = 0
    #: How many settings every method lists, its default first. The first `trials` of them are tried.
    points: int = POINTS
    #: Epochs of a trial. The default is `training.epochs`.
    epochs: int | None = None
    #: The seed of all trials.
    seed: int = 1000
    #: Whether the settings after the first are drawn with `seed` for every method. By default, methods of several parts
    #: draw, and a method of one part tries its settings in the order in which it lists them.
    draw: bool = False
    #: Method -> field -> values, or method -> a list of settings, in place of the built-in grids.
    grids: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        integer("trials", self.trials, minimum=0)
        integer("points", self.points, minimum=1)
        if self.trials > self.points:
            raise bad_argument("trials", f"at most tuning.points, which is {self.points}", self.trials)
        integer("seed", self.seed, minimum=0)
        if self.epochs is not None:
            integer("epochs", self.epochs, minimum=1)


@dataclass(frozen=True)
class Recipe:
    """The settings of a study. Its runs differ only in method and seed.

    >>> Recipe(training=TrainingSettings(epochs=3)).to_dict()["training"]["epochs"]
    3
    """

    #: The name of the study, and the first part of the name of its folder.
    name: str = "digits"
    #: The name of the chosen size, and the second part of the name of its folder.
    size: str = "demo"
    #: The name of the task. It sets the classes of `data`, `model` and `evaluation`.
    task: str = DEFAULT
    data: DataSettings = field(default_factory=TASKS[DEFAULT].data_settings)
    model: ModelSettings = field(default_factory=TASKS[DEFAULT].model_settings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    evaluation: EvaluationSettings = field(default_factory=TASKS[DEFAULT].evaluation_settings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    tuning: TuningSettings = field(default_factory=TuningSettings)
    #: The methods that `compare` compares by default. The first one is the baseline.
    methods: tuple[str, ...] = ("none", "dropout", "hard", "blur")
    #: What `ablate` varies by default: method -> field -> values.
    ablations: dict[str, Any] = field(default_factory=dict)
    #: How many seeds each method gets.
    seeds: int = 3
    #: The first of them. Another first seed confirms a choice on runs that had no part in it.
    first_seed: int = 0

    def seed_numbers(self, count: int) -> list[int]:
        """The first `count` seeds."""
        return list(range(self.first_seed, self.first_seed + count))

    def __post_init__(self) -> None:
        for section, cls in sections_of(find_task(self.task)).items():
            if not isinstance(getattr(self, section), cls):
                raise bad_argument(section, f"the {cls.__name__} of the task {self.task}", getattr(self, section))
        if integer("seeds", self.seeds, minimum=1) > _MOST_SEEDS:
            raise bad_argument("seeds", f"an integer of at most {_MOST_SEEDS}", self.seeds)
        integer("first_seed", self.first_seed, minimum=0)
        if self.first_seed <= self.tuning.seed < self.first_seed + self.seeds and self.tuning.trials:
            raise bad_argument("tuning.seed", "a seed that no final run uses", self.tuning.seed)
        # Both are part of the name of the results folder, so they must not contain a path.
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
    """The sections of a recipe that differ between tasks, with their classes in this task."""
    return {"data": task.data_settings, "model": task.model_settings, "evaluation": task.evaluation_settings}


def build_recipe(content: Any) -> Recipe:
    """Build a recipe from a nested mapping, which may name its task.

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
