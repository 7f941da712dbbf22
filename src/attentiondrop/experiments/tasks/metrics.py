"""A metric: what a number of a run is called, in which unit it is shown, and which direction is better."""

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

    #: As records hold it.
    name: str
    #: As sentences and headings name it.
    label: str
    #: Of the number that is shown.
    unit: str
    higher_is_better: bool
    #: From the number in the record to the number that is shown: 100 for shares that are shown in per cent.
    factor: float = 1.0
    #: Digits after the point in a report, and on a terminal.
    digits: int = 2
    brief_digits: int = 1
    #: Whether differences to the baseline are tested for it.
    compared: bool = True
    #: Whether a terminal, which has little room, shows it.
    brief: bool = True

    @property
    def column(self) -> str:
        """The heading of a column on a terminal."""
        return f"{self.label} {self.unit}" if self.unit == PERCENT else self.label

    @property
    def heading(self) -> str:
        """The heading of a column in a report."""
        label = self.label[:1].upper() + self.label[1:]
        return f"{label}, {self.unit}" if self.unit == PERCENT else label

    @property
    def difference_unit(self) -> str:
        """Differences of per cents are points."""
        return "points" if self.unit == PERCENT else self.unit

    @property
    def difference_heading(self) -> str:
        """The heading of a column of differences."""
        return f"{self.label}, {self.difference_unit}" if self.unit == PERCENT else self.label

    @property
    def ceiling(self) -> float | None:
        """The largest value that can be, as shown."""
        return 100.0 if self.unit == PERCENT else None

    def text(self, value: float, digits: int | None = None) -> str:
        """A value of a record, for people, with its unit."""
        shown = f"{value * self.factor:.{self.brief_digits if digits is None else digits}f}"
        return f"{shown} {self.unit}" if self.unit == PERCENT else shown

    def better(self, value: float) -> float:
        """A number that grows as the value gets better."""
        return value if self.higher_is_better else -value


@dataclass(frozen=True)
class Metrics:
    """The metrics of a task. The first one is primary: it picks epochs and settings, and leads every table."""

    all: tuple[Metric, ...]
    #: Tells apart what is equal in the primary metric, which many runs are where it is a share of few examples.
    tie_break: str | None = None

    @property
    def primary(self) -> Metric:
        """The metric that decides."""
        return self.all[0]

    @property
    def others(self) -> tuple[Metric, ...]:
        """The metrics that inform."""
        return self.all[1:]

    def named(self, name: str) -> Metric:
        """The metric of that name."""
        return next(metric for metric in self.all if metric.name == name)

    def merit(self, scores: Mapping[str, float]) -> tuple[float, ...]:
        """Tuples that compare as the scores of one part do: the larger one is the better one."""
        names = [self.primary.name, *([] if self.tie_break is None else [self.tie_break])]
        return tuple(self.named(name).better(scores[name]) for name in names)

    def can_judge(self, scores: Mapping[str, float] | None) -> bool:
        """Whether the scores have what `merit` needs."""
        return scores is not None and all(
            name in scores for name in (self.primary.name, self.tie_break) if name is not None
        )
