"""A search on validation data: its combinations in the order of their means, and their differences.

Two or three seeds are few. So intervals use one deviation for all combinations, as on the page of the ablations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ablations import NONE, Ablations, Change


@dataclass(frozen=True)
class Ranking:
    """The combinations of a search. `score` and `unit`: what its tables call a score, and a difference of scores."""

    found: Ablations
    score: str
    unit: str

    def ranked(self) -> list[str]:
        """All combinations, the best first."""
        return sorted(self.found.scores, key=self.mean, reverse=True)

    def winner(self, is_one: Callable[[str], bool] = lambda method: True) -> str:
        """The combination with the best mean over its seeds, among those of a kind."""
        return next(method for method in self.ranked() if is_one(method))

    def mean(self, method: str) -> float:
        """The mean score of a combination."""
        scores = self.found.scores[method].values()
        return sum(scores) / len(scores)

    def change(self, method: str, other: str = NONE) -> Change:
        """The difference of two combinations."""
        one = self.found.change([method], other)
        if one is None:
            raise SystemExit(f"expected runs of {method} and {other} with the same seeds")
        return one

    def table(self) -> str:
        """All combinations, the best first."""
        best = self.ranked()[0]
        lines = [
            f"| combination | seeds | validation {self.score} | to `none`, {self.unit} | to the first, {self.unit} |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for method in self.ranked():
            to_none = "" if method == NONE else str(self.change(method))
            to_best = "" if method == best else str(self.change(method, best))
            seeds = len(self.found.scores[method])
            lines.append(f"| `{method}` | {seeds} | {self.mean(method):.2f} | {to_none} | {to_best} |")
        return "\n".join(lines)

    def state(self) -> str:
        """How many runs there are, and how exact they are."""
        done = sum(map(len, self.found.scores.values()))
        return (
            f"{done} of {self.found.planned} runs. A run deviates by {self.found.deviation[0]:.1f} {self.unit} from "
            "the mean of its combination and of its seed."
        )
