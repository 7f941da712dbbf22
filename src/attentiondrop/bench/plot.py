"""Pictures of time, of its ratio to plain attention, and of memory over the length, from the CSV file of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import bad_argument
from .records import TIMED, read_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Line = Mapping[str, str]

#: Column, end of the file name, label of the axis.
PICTURES = (
    ("step_ms", "time", "forward and backward, ms"),
    ("plain_ratio", "ratio", "forward and backward, divided by plain attention"),
    ("extra_mib", "memory", "peak extra memory, MiB"),
)
#: Colours, line style and marker of each kind: grey and red for what ours is compared with.
_STYLES = {
    "plain": (("#000000", "#555555", "#777777", "#999999", "#bbbbbb"), "-", "o"),
    "dropout": (("#000000", "#555555", "#777777", "#999999", "#bbbbbb"), "--", "s"),
    "flex": (("#8c564b", "#c49c94"), "-.", "D"),
    "paper": (("#d62728", "#ff9896"), ":", "x"),
    "ours": (("#1f77b4", "#2ca02c", "#98df8a", "#9467bd", "#ff7f0e", "#17becf", "#bcbd22"), "-", "^"),
}


def draw(csv: Path) -> list[Path]:
    """Write a picture for each column of `PICTURES` that was measured, beside the file; return their paths."""
    groups: dict[tuple[str, ...], list[Line]] = {}
    for line in read_csv(csv):
        if line["status"] == TIMED:
            key = tuple(line.get(name, "") for name in ("batch", "heads", "key_heads", "size", "causal", "dtype"))
            groups.setdefault(key, []).append(line)
    long = {key: lines for key, lines in groups.items() if len({line["length"] for line in lines}) > 1}
    if not long:
        raise bad_argument("csv", "timings of one shape at two lengths or more", csv.name)
    written: list[Path] = []
    for index, lines in enumerate(long.values()):
        for column, end, label in PICTURES:
            if any(line[column] for line in lines):
                path = csv.with_name(f"{csv.stem}-{end}{index + 1 if len(long) > 1 else ''}.png")
                _draw(path, lines, column, label)
                written.append(path)
    return written


def _draw(path: Path, lines: Sequence[Line], column: str, label: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    figure = Figure(figsize=(9.5, 5.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # draws into memory: works without a screen
    axes = figure.add_subplot()
    _curves(axes, lines, column)
    lengths = sorted({_length(line) for line in lines})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    if column == "plain_ratio":  # from about 0.5 to 3: powers of ten alone would leave one number on the axis
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("length N")
    axes.set_ylabel(label)
    axes.set_title(_title(lines[0]), fontsize=10)
    axes.grid(color="#dddddd", linewidth=0.6)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(path)


def _curves(axes: Axes, lines: Sequence[Line], column: str) -> None:
    seen: dict[str, int] = {}
    for row in dict.fromkeys(line["row"] for line in lines):
        points = sorted((line for line in lines if line["row"] == row and line[column]), key=_length)
        if not points:
            continue
        kind = points[0]["kind"]
        colours, dashes, marker = _STYLES.get(kind, _STYLES["ours"])
        colour = colours[seen.get(kind, 0) % len(colours)]
        seen[kind] = seen.get(kind, 0) + 1
        lengths, values = [_length(line) for line in points], [float(line[column]) for line in points]
        axes.plot(lengths, values, dashes, marker=marker, markersize=4, linewidth=1.4, color=colour, label=row)
        if all(line.get(f"{column}_20") for line in points):
            low, high = ([float(line[f"{column}_{end}"]) for line in points] for end in ("20", "80"))
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)


def _length(line: Line) -> int:
    return int(line["length"])


def _title(line: Line) -> str:
    heads = line["heads"] + (f" ({line['key_heads']} key heads)" if line["key_heads"] != line["heads"] else "")
    shape = f"batch {line['batch']}, {heads} heads of {line['size']}" + ", causal" * (line["causal"] == "True")
    how = ", compiled" * (line["compiled"] == "True") + ", CUDA graph" * (line["graph"] == "True")
    return f"{line['device']}, torch {line['torch']}, {line['dtype']}{how}\n{shape}; commit {line['commit']}"
