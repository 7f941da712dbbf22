"""Writes the tables of docs/methods.md from what the methods say about themselves and from the measured costs.

python docs/methods_table.py [--check]
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from attentiondrop.experiments.methods import COMPARATORS
from attentiondrop.experiments.methods.catalogue import Listed, catalogue, described
from attentiondrop.experiments.methods.groups import ALL, groups
from attentiondrop.experiments.methods.parse import read_method, terms
from attentiondrop.torch.eager.table import entry_of

PAGE = Path(__file__).parent / "methods.md"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
BEGIN, END = "<!-- begin: written by docs/methods_table.py -->", "<!-- end -->"
TITLES = {
    "ours": "Ours",
    "attention": "Attention",
    "hidden": "Hidden states",
    "weights": "Weights",
    "data": "Data",
    "loss": "Losses",
    "structure": "Attention that is built otherwise",
    "controls": "Controls",
}
#: Few enough for a page without scrolling sideways. What holds for nearly all methods, `exceptions` says below a table.
HEADINGS = ("method", "what it does", "attention", "small ViT", "ViT-B/16")


def tables() -> str:
    """One table for each group. A method that is in two groups is listed in the first."""
    measured, where = costs()
    lines = [BEGIN, "", where]
    shown: set[str] = set()
    for group, title in TITLES.items():
        lines += ["", f"### {title} (`--methods {group}`)", ""]
        lines += [f"| {' | '.join(HEADINGS)} |", f"| {'--- | ' * len(HEADINGS)}"[:-1]]
        methods = [one for one in catalogue(groups()[group]) if one.name not in shown]
        explained: set[str] = set()
        for one in methods:
            cells = row(one, measured, explained)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        lines += exceptions(methods)
        listed = {one.name for one in methods}
        shown |= listed
        if elsewhere := [text for text in groups()[group] if text not in listed]:
            names = ", ".join(f"`{text}`" for text in elsewhere)
            lines += ["", f"This group has {len(elsewhere)} more, in a table above: {names}."]
        # The site has pictures here (docs/site_pages/method_pictures.py); other readers of this file see nothing.
        lines += ["", f"<!-- generated: pictures of {group} -->"]
    if shown != set(groups()[ALL]):
        raise SystemExit(f"these methods have no group: {sorted(set(groups()[ALL]) - shown)}")
    return "\n".join([*lines, "", END])


def row(one: Listed, measured: dict[tuple[str, str], str], explained: set[str]) -> list[str]:
    """The cells of one method. `explained`: the parts of methods that this table has explained already."""
    return [
        f"`{one.text if one.name == 'none' else one.settings[0]}`",
        f"*{one.perturbs.removeprefix('nothing: ')}:* {formula(one, explained)}<br>Source: {one.reference}",
        kernel(one.name),
        *(measured.get((model, one.name), "-") for model in ("small", "vit-b16")),
    ]


def formula(one: Listed, explained: set[str]) -> str:
    """What each part of a method computes. A part that a row above explained is only named."""
    names = [term.name for term in terms(one.name)]
    above = " and ".join(f"`{name}`" for name in names if name in explained)
    new = [described(name)[1] for name in names if name not in explained]
    explained.update(names)
    return "; ".join([f"{above}, as above"] * bool(above) + new)


def exceptions(methods: list[Listed]) -> list[str]:
    """Lines on the methods that change the model in evaluation, or whose step cannot be captured."""
    changed = [f"`{one.name}`" for one in methods if not one.training_only]
    lines = []
    if changed:
        which = "all methods of this group" if len(changed) == len(methods) else ", ".join(changed)
        lines += ["", f"**Evaluation is changed** by: {which}."]
    for one in methods:
        if one.not_captured:
            lines += ["", f"**A step cannot be captured** with `{one.name}`: {one.not_captured}."]
    return lines


def kernel(text: str) -> str:
    """How the attention is computed with a method: by a fused kernel, or with its logits in memory."""
    method = read_method(text)
    own = {COMPARATORS[part.name].kernel for part in method.comparators} - {""}
    if method.attached is None:
        return " ".join(own) or "as in the model"
    stages = [(entry_of(leaf).stage, leaf) for leaf in method.attached.leaves()]
    fused = all(stage is not None and stage.why_not(leaf) is None for stage, leaf in stages)
    return "fused" if fused else "in memory"


def costs() -> tuple[dict[tuple[str, str], str], str]:
    """(model, method) -> the cost, and a line that says where it was measured. The newest file on a GPU counts."""
    found = []
    for path in RESULTS.glob("methods-*.csv"):
        with path.open(encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        if lines:
            found.append(("cpu" not in path.stem, max(line["date"] for line in lines), path.stem, lines))
    if not found:
        return {}, "The costs have not been measured yet (`benchmarks/methods_cost.py`)."
    _, date, name, lines = max(found, key=lambda one: one[:3])
    cells = {(line["model"], line["method"]): f"{float(line['cost']):.2f}" for line in lines if line["cost"]}
    # A run that was stopped may have been continued at a later commit, on the same GPU.
    commits = list(dict.fromkeys(line["commit"] for line in lines))
    runs = "one run" if len(commits) == 1 else f"{len(commits)} runs on one GPU"
    about = f"{lines[0]['device']}, torch {lines[0]['torch']}, {date}"
    return (
        cells,
        f"Costs: time of training as a ratio to `none`, from [{runs}](../benchmarks/results/{name}.md) ({about}). "
        '"-": not measured.',
    )


def renewed(page: str) -> str:
    """The page with its tables as they should be now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + tables() + after


if __name__ == "__main__":
    old = PAGE.read_text(encoding="utf-8")
    new = renewed(old)
    if "--check" in sys.argv:
        sys.exit(0 if new == old else "docs/methods.md is out of date: run python docs/methods_table.py")
    PAGE.write_text(new, encoding="utf-8")
