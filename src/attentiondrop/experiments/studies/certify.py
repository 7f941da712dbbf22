"""Certificates for a run: bounds on its true risk, from data that was not used to train or choose it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...errors import ArgumentError, bad_argument
from ...theory import PosteriorCertificate, PosteriorSettings, RiskReport, posterior_certificate, risk_certificate
from ...theory.fitting import Schedule
from ...theory.overlap import repeated
from ...validation import integer
from ..methods.apply import Applied
from ..methods.comparator import Acting
from ..runs.finished_run import LoadedRun, load_rates, load_run, tested_weights
from ..tasks.interface import Batch, ExampleData
from ..train.loop import initial_model
from ..train.seeding import own_generators

FILE = "certificate.json"
#: A certificate bounds one minus this metric.
_CERTIFIED = "accuracy"
#: Parts that cannot certify a run, and the reason for the error message.
_USED = {
    "train": "the model was trained on it",
    "validation": "it picked the epoch, and the method's settings where they were tuned",
}
#: If a larger share of the held-out examples also occurs in training or validation, the part is refused.
_REPEATED = 0.01
#: With more examples than this in all parts, they are not compared one by one.
_COMPARED = 200_000
#: A larger training part, in bytes, gets no certificate from a prior, which needs all of it in memory.
_IN_MEMORY = 2**31
#: A prior is trained for the epochs of the recipe, but at most this many.
PRIOR_EPOCHS = 20

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class RunCertificates:
    """The certificates of a run."""

    method: str
    weights: str
    part: str
    held_out: RiskReport
    posterior: PosteriorCertificate | None
    #: The run's recorded test error.
    test_error: float | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {name: getattr(self, name) for name in ("method", "weights", "part", "test_error")}
        posterior = None if self.posterior is None else self.posterior.to_dict()
        return {**plain, "held_out": self.held_out.to_dict(), "posterior": posterior, "notes": list(self.notes)}


def certify_run(
    folder: Path,
    *,
    part: str = "test",
    weights: str = "best",
    draws: int = 4,
    delta: float = 0.05,
    prior_epochs: int | None = None,
    device: str = "cpu",
    root: str | None = None,
    seed: int = 0,
    on_progress: OnProgress = lambda label, share: None,
) -> RunCertificates:
    """Certify a finished run on a part of its data that it has not used.

    Args:
        folder: the folder of the run.
        part: must be "test". The run used the other parts to train or to choose, so they are refused.
        weights: "best" or "last".
        draws: how many perturbed passes for each example, at least 2.
        delta: each certificate is wrong with probability at most delta.
        prior_epochs: training epochs of the data-dependent prior. 0 leaves that certificate out. The default is the
            epochs of the recipe, at most `PRIOR_EPOCHS`.
        device, root: as for `load_run`.
        seed: for the draws and for the share of the data that the prior is trained on.
        on_progress: called with a label and the share that is done.
    """
    if part in _USED:
        raise ArgumentError(f"part: expected 'test', received {part!r}, which proves nothing: {_USED[part]}")
    if part != "test":
        raise bad_argument("part", "'test'", part)
    if prior_epochs is not None:
        prior_epochs = integer("prior_epochs", prior_epochs, minimum=0)
    on_progress("loading the run", 0.0)
    run = load_run(folder, weights, device, root)
    check_certifiable(run)
    # Certify the rates that training ended with.
    load_rates(run.applied, run.weights)
    suspects, notes = check_held_out(run, part)
    count, batch_size = run.data.counts[part], run.recipe.evaluation.batch_size
    epochs = min(PRIOR_EPOCHS, run.recipe.training.epochs) if prior_epochs is None else prior_epochs
    share = 0.2 if epochs else 1.0
    held_out = risk_certificate(
        run.model,
        run.data.batches(part, batch_size),
        draws=draws,
        delta=delta,
        seed=seed,
        suspects=suspects,
        on_batch=lambda done: on_progress("held-out examples", share * done / count),
    )
    posterior: PosteriorCertificate | None = None
    if epochs:
        reason = _why_no_posterior(run)
        if reason is None:
            try:
                posterior = _posterior(
                    run,
                    part,
                    suspects,
                    epochs,
                    delta,
                    seed,
                    lambda label, done: on_progress(label, share + (1 - share) * done),
                )
            except ArgumentError as error:
                reason = str(error)
        if reason is not None:
            notes.append(f"no certificate from a data-dependent prior: {reason}")
    test = None if run.record.result is None else run.record.result.test
    if getattr(run.recipe.data, "label_noise", 0.0) and posterior is not None:
        notes.append("training labels are noisy: the posterior's bound is on the risk under labels with the same noise")
    if posterior is not None and run.applied.has_own_rates():
        notes.append(
            "the posterior does not have the rates that the run learned or adapted: these come from all training "
            "examples, and its prior may know only its own share"
        )
    if posterior is not None and (left_out := _around_steps(run.applied)):
        notes.append(
            f"the model of the prior is trained without {' and '.join(left_out)}: it changes batches, or acts before "
            "or after steps, and the training of a prior has only its loss"
        )
    notes.append("the parts were split by class, which keeps class shares steadier than i.i.d. sampling would")
    on_progress("certified", 1.0)
    test_error = None if test is None else 1.0 - test[_CERTIFIED]
    tested = tested_weights(run.record)
    if test_error is not None and tested != weights:
        notes.append(
            f"the run's own test error is that of its {tested} weights, and its {weights} weights are certified"
        )
    return RunCertificates(run.method.text, weights, part, held_out, posterior, test_error, tuple(notes))


def check_held_out(run: LoadedRun, part: str) -> tuple[np.ndarray | None, list[str]]:
    """Refuse a part that the run has used. Return which of its examples also occur in used parts, and notes.

    `load_run` has already checked that the data is the data of the run.
    """
    checksums = run.record.request.checksums
    for used in _USED:
        if checksums[used] == checksums[part]:
            raise ArgumentError(f"part {part}: its checksum is that of the {used} part, which proves nothing")
    if sum(run.data.counts.values()) > _COMPARED:
        return None, ["examples were not compared one by one with those of the other parts: there are too many"]
    found = repeated(_inputs(run.data, part), (inputs for used in _USED for inputs in _inputs(run.data, used)))
    if found.mean() > _REPEATED:
        raise ArgumentError(
            f"part {part}: {int(found.sum())} of {len(found)} examples occur in the training or validation part too, "
            "which proves nothing"
        )
    return found, []


def check_certifiable(run: LoadedRun) -> None:
    """Refuse a run of a task in which a single prediction is not simply right or wrong, or that has other data."""
    if _CERTIFIED not in {metric.name for metric in run.task.metrics.all}:
        raise ArgumentError(
            f"run: expected one of a task that measures {_CERTIFIED}, received one of {run.task.name}: "
            "a certificate bounds the share of wrong predictions"
        )
    if not isinstance(run.data, ExampleData):
        raise ArgumentError(
            f"run: expected one of a task with examples in one tensor, such as images, received one of {run.task.name}"
        )


def _around_steps(applied: Applied) -> list[str]:
    """The comparators that do more than change the model and its loss."""
    hooks = ("begin_epoch", "begin_step", "batch", "end_step")
    return [
        name
        for name, acting in applied.acting.items()
        if any(getattr(type(acting), hook) is not getattr(Acting, hook) for hook in hooks)
    ]


def _inputs(data: ExampleData, part: str) -> Iterator[Tensor]:
    return (batch.inputs for batch in data.published(part))


def _why_no_posterior(run: LoadedRun) -> str | None:
    size = run.data.bytes_to_train
    if size > _IN_MEMORY:
        return f"the training part has {size / 2**30:.1f} GiB, too much to hold in memory"
    return None


def _posterior(
    run: LoadedRun,
    part: str,
    suspects: np.ndarray | None,
    epochs: int,
    delta: float,
    seed: int,
    on_progress: OnProgress,
) -> PosteriorCertificate:
    """Train a new model with the method and recipe of the run, as prior and posterior, and certify it."""
    training, data = run.recipe.training, run.data
    model = initial_model(run.recipe, run.method, run.record.request.seed, data).to(data.device)
    applied = Applied(run.method, model, kinds=training.kinds)
    # Not `load_rates`: what the run has learned or adapted comes from all training examples, also those of the bound.
    applied.set_progress(1.0)
    settings = PosteriorSettings(
        prior=Schedule(epochs, training.batch_size, training.learning_rate, training.weight_decay, training.warmup),
        posterior=Schedule(epochs=3, batch_size=training.batch_size, weight_decay=0.0),
        seed=seed,
    )
    mode: Any = training.consistency_mode
    objective = applied.objective(run.task, training.label_smoothing, mode)
    with own_generators():
        return posterior_certificate(
            model,
            *data.independent("train"),
            held_out=data.independent(part),
            suspects=suspects,
            objective=lambda model, inputs, targets: objective(model, Batch(inputs, targets)),
            settings=settings,
            delta=delta,
            on_progress=on_progress,
        )
