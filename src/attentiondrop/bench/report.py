"""The files of a run: a CSV file and a Markdown page with the same numbers, up to date after every shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .environment import Environment
from .records import Outcome, append_csv

ATTENTION_NOTES = (
    "fwd: forward without gradients, median. fwd+bwd: forward, and backward to queries, keys and values; median and",
    "quantiles. Rows take turns within every repeat. / plain and / dropout: the ratio of fwd+bwd, within a repeat, to",
    "the fastest plain SDPA and to the fastest with SDPA's own dropout; median and 20 - 80 % quantiles. extra MiB: the",
    "most memory that fwd+bwd had allocated beyond its inputs; output and gradients, which every row writes, count.",
    'path: which way `backend="auto"` went. The listings of the paper build all logits, and so does SDPA math.',
)
VIT_NOTES = (
    "A step: forward (under autocast, unless in float32), cross entropy, backward, fused AdamW; data is on the device.",
    "Rows run one after the other on one model; the plain row runs first and last, and ratios are to the mean of both.",
    "img/s / plain above 1 is faster, GiB / plain above 1 is more. peak GiB: of the whole step, weights and optimiser",
    "included. blocks: each transformer block compiled; compiled: the model as a whole. Before its steps, a row's",
    "attention was checked alone at the model's shape.",
)


@dataclass
class Report:
    """Two files with the same name in `folder`. A run replaces old ones, and adds to them after every shape or mode."""

    folder: Path
    name: str
    title: str
    command: str
    notes: Sequence[str]
    environment: Environment
    sections: dict[str, list[Outcome]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.csv.unlink(missing_ok=True)

    @property
    def csv(self) -> Path:
        """The CSV file: every number, with the environment."""
        return self.folder / f"{self.name}.csv"

    @property
    def markdown(self) -> Path:
        """The Markdown page with the tables."""
        return self.folder / f"{self.name}.md"

    def add(self, heading: str, outcomes: Sequence[Outcome]) -> None:
        """Write the outcomes of a shape or a mode to both files."""
        self.sections[heading] = list(outcomes)
        append_csv(self.csv, outcomes, dataclasses.asdict(self.environment))
        text = page(self.title, self.command, self.notes, self.environment, self.sections)
        self.markdown.write_text(text, encoding="utf-8")


def page(
    title: str,
    command: str,
    notes: Sequence[str],
    environment: Environment,
    sections: Mapping[str, Sequence[Outcome]],
) -> str:
    """The Markdown page."""
    env = environment
    device = f"{env.device} (driver {env.driver})" if env.driver else env.device
    lines = [
        f"# {title}",
        "",
        f"- device: {device}",
        f"- versions: attentiondrop {env.attentiondrop}, torch {env.torch}, triton {env.triton}, "
        f"timm {env.timm}, Python {env.python}",
        f"- commit {env.commit}, {env.date}",
        f"- command: `{command}`",
        "",
        *notes,
    ]
    for heading, outcomes in sections.items():
        lines += ["", f"## {heading}", "", *markdown_table(outcomes)]
        if bases := base_line(outcomes):
            lines += ["", bases]
        remarks = [f"- {remark}" for outcome in outcomes if (remark := outcome.remark())]
        lines += ["", *remarks, *check_lines(outcomes)]
    return "\n".join(lines).rstrip() + "\n"


def markdown_table(outcomes: Sequence[Outcome]) -> list[str]:
    """The lines of a table with right-aligned numbers."""
    headings = outcomes[0].headings
    rows = [outcome.cells() for outcome in outcomes]
    rule = ["---"] * 2 + ["---:"] * (len(headings) - 2)
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows)]


def base_line(outcomes: Sequence[Outcome]) -> str:
    """Which rows the ratios are taken to."""
    plain = next(filter(None, (getattr(outcome, "plain_base", "") for outcome in outcomes)), "")
    dropout = next(filter(None, (getattr(outcome, "dropout_base", "") for outcome in outcomes)), "")
    bases = [f"/ plain: to {plain}"] * bool(plain) + [f"/ dropout: to {dropout}"] * bool(dropout)
    return "; ".join(bases)


def check_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """How the timed rows were checked, rows with the same check together."""
    checks: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.check and outcome.error is not None:
            checks.setdefault(outcome.check, []).append(outcome)
    return [
        f"- checked: {check}: " + ", ".join(f"{outcome.row} {outcome.error:.1g}" for outcome in group)
        for check, group in checks.items()
    ]
