"""A metric: the name of a number, the unit it is shown in, and which direction is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PERCENT = "%"


@dataclass(frozen=True)
class Metric:
    """One number that a task measures on a part of its data.

    >>> accuracy = Metric("accuracy", "accuracy", "%", higher_is_better=True, factor=100)
    >>> accuracy.text(0.951), accuracy.heading, accuracy.column, accuracy.difference_unit
    ('95.1 %', 'Accuracy, %', 'accuracy %', 'points')
    """

    #: The name in records.
    name: str
    #: The name in sentences and headings.
    label: str
    #: The unit of the number that is shown.
    unit: str
    higher_is_better: bool
    #: The number in the record times this is shown: 100 for shares that are shown in per cent.
    factor: float = 1.0
    #: Digits after the point in a report, and on a terminal.
    digits: int = 2
    brief_digits: int = 1
    #: Whether its differences to the baseline are computed and tested.
    compared: bool = True
    #: Whether the table on the terminal, which has little room, shows it.
    brief: bool = True
    #: Differences below this, as they are shown, do not matter in practice; None if nobody has said.
    margin: float | None = None
    #: What the label means, where it does not say so itself.
    note: str = ""

    @property
    def column(self) -> str:
        """The heading of a column on a terminal."""
        return f"{self.label} {self.unit}" if self.unit == PERCENT else self.label

    @property
    def heading(self) -> str:
        """The heading of a column in a report."""
        return f"{self.title}, {self.unit}" if self.unit == PERCENT else self.title

    @property
    def title(self) -> str:
        """The label with a capital letter. A name with capitals of its own, such as chrF, keeps its spelling.

        >>> [Metric("", label, "", True).title for label in ("tokenised BLEU", "chrF")]
        ['Tokenised BLEU', 'chrF']
        """
        first = self.label.partition(" ")[0]
        return self.label[:1].upper() + self.label[1:] if first == first.lower() else self.label

    @property
    def difference_unit(self) -> str:
        """The unit of a difference. For per cents it is points."""
        return "points" if self.unit == PERCENT else self.unit

    @property
    def after_difference(self) -> str:
        """What follows the word "difference": a comma and the unit, or nothing for a metric without a unit."""
        return f", {self.difference_unit}" if self.difference_unit else ""

    @property
    def ceiling(self) -> float | None:
        """The largest possible value, as it is shown; None if there is none."""
        return 100.0 if self.unit == PERCENT else None

    def text(self, value: float, digits: int | None = None) -> str:
        """A value of a record, for people, with its unit."""
        shown = f"{value * self.factor:.{self.brief_digits if digits is None else digits}f}"
        return f"{shown} {self.unit}" if self.unit == PERCENT else shown

    def better(self, value: float) -> float:
        """A number that is higher for better values."""
        return value if self.higher_is_better else -value


@dataclass(frozen=True)
class Metrics:
    """The metrics of a task. The first one is primary: it chooses epochs and settings, and comes first in tables."""

    all: tuple[Metric, ...]
    #: The name of the metric that decides between equal primary metrics. Accuracies on few examples are often equal.
    tie_break: str | None = None
    #: The name of the metric that is measured after each epoch and chooses among epochs, if it is not the primary one:
    #: some metrics take long, such as BLEU.
    by_epoch: str | None = None

    @property
    def primary(self) -> Metric:
        """The metric that chooses epochs and settings."""
        return self.all[0]

    @property
    def others(self) -> tuple[Metric, ...]:
        """All other metrics."""
        return self.all[1:]

    @property
    def each_epoch(self) -> Metric:
        """The metric that is measured after each epoch, for curves."""
        return self.primary if self.by_epoch is None else self.named(self.by_epoch)

    def epoch_merit(self, scores: Mapping[str, float]) -> tuple[float, ...]:
        """As `merit`, for scores that were measured after an epoch."""
        if self.by_epoch is None:
            return self.merit(scores)
        return (self.each_epoch.better(scores[self.by_epoch]),)

    def named(self, name: str) -> Metric:
        """The metric of that name."""
        return next(metric for metric in self.all if metric.name == name)

    def merit(self, scores: Mapping[str, float]) -> tuple[float, ...]:
        """A tuple to compare scores by: better scores give a larger tuple."""
        names = [self.primary.name, *([] if self.tie_break is None else [self.tie_break])]
        return tuple(self.named(name).better(scores[name]) for name in names)

    def can_judge(self, scores: Mapping[str, float] | None) -> bool:
        """Whether the scores have all metrics that `merit` needs."""
        return scores is not None and all(
            name in scores for name in (self.primary.name, self.tie_break) if name is not None
        )


#: The metrics of tasks whose examples each have one class.
CLASS_METRICS = Metrics(
    (
        Metric("accuracy", "accuracy", PERCENT, higher_is_better=True, factor=100, margin=0.3),
        Metric("nll", "NLL", "nats", higher_is_better=False, digits=3, brief_digits=3),
        Metric("ece", "ECE", PERCENT, higher_is_better=False, factor=100),
        Metric(
            "ece_scaled",
            "scaled ECE",
            PERCENT,
            higher_is_better=False,
            factor=100,
            brief=False,
            note="the ECE after temperature scaling: one number, which the validation part decides, divides all logits",
        ),
        Metric("brier", "Brier", "", higher_is_better=False, digits=3, brief_digits=3, brief=False),
        Metric("top5", "top-5", PERCENT, higher_is_better=True, factor=100, compared=False, brief=False),
    ),
    tie_break="nll",
)
