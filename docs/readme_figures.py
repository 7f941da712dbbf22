"""Draw the figures of README.md and of docs/speed.md (`python docs/readme_figures.py`)."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from speed_tables import RESULTS, TRAINED
from speed_tables import number as step_ratio

from attentiondrop import parse
from attentiondrop.pictures import draw

HERE = Path(__file__).parent
SHORT_ROWS = RESULTS / "short-rows-h200-torch2.11.md"
SPECS = ("hard(p=0.1,k=5)", "blur(sigma_max=0.5)", "dropkey(p=0.1)", "attndropout(p=0.1)")
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#999999")
#: Shapes of the result file (batch x heads x tokens x head size), and where people meet them.
SHAPES = {
    "256x12x65x16": "65 tokens of 16\n(a small ViT)",
    "64x12x65x64": "65 tokens\n(CIFAR)",
    "512x12x128x64": "128 tokens",
    "256x12x197x64": "197 tokens\n(ViT-B/16)",
    "64x16x256x64": "256 tokens",
}


def measured_ratios(text: str) -> dict[tuple[str, str], float]:
    """(shape, spec) -> time to that of plain attention, from the first table of the result file.

    >>> measured_ratios("| 1x2x3x4 | 0.1, 0.2 | hard(p=0.1,k=5) | 0.1 | 0.1 | 0.2 | 0.97 | |")
    {('1x2x3x4', 'hard(p=0.1,k=5)'): 0.97}
    """
    found, shape = {}, ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 8 or not re.fullmatch(r"[\d.]+", cells[6]):
            continue
        shape = cells[0] or shape
        found[shape, cells[2].split(" ")[0]] = float(cells[6])
    return found


def draw_speed(path: Path) -> None:
    """Bars: time of attention, forward and backward, to that of plain attention."""
    ratios = measured_ratios(SHORT_ROWS.read_text())
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (spec, colour) in enumerate(zip(SPECS, COLOURS, strict=True)):
        places = [place + 0.2 * (number - 1.5) for place in range(len(SHAPES))]
        bars = axes.bar(places, [ratios[shape, spec] for shape in SHAPES], 0.18, label=spec, color=colour)
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.text(-0.55, 1.01, "plain attention (cuDNN)", fontsize=8, va="bottom")
    axes.set_xticks(range(len(SHAPES)), list(SHAPES.values()), fontsize=9)
    axes.set_ylabel("time / plain attention", fontsize=9)
    axes.set_title("Attention with a regulariser, forward and backward, one H200, bfloat16", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, ncols=4, loc="upper left", bbox_to_anchor=(0, 0.95), frameon=False)
    axes.set_ylim(0, 1.45)
    figure.savefig(path, dpi=110)


def draw_training_speed(path: Path) -> None:
    """Bars: speed of a whole training step with a method, to that without."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (spec, colour) in enumerate(zip(SPECS[:2], COLOURS, strict=False)):
        places = [place + 0.3 * (number - 0.5) for place in range(len(TRAINED))]
        speeds = [step_ratio(file, row + spec, column) for file, row, column, *_ in TRAINED.values()]
        # Inside the bars, where the line at 1 does not cross the numbers.
        bars = axes.bar(places, speeds, 0.28, label=spec, color=colour)
        axes.bar_label(bars, fmt="%.2f", fontsize=9, label_type="center", color="white")
    axes.axhline(1.0, color="black", linewidth=1)
    axes.text(-0.55, 1.01, "without", fontsize=8, va="bottom")
    axes.set_xlim(-0.6, len(TRAINED) - 0.4)
    axes.set_xticks(range(len(TRAINED)), list(TRAINED), fontsize=9)
    axes.set_ylabel("speed / without", fontsize=9)
    axes.set_title("Speed of a training step: more than 1 is faster (one H200, bfloat16)", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="upper right", frameon=False)
    axes.set_ylim(0, 1.4)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    images = HERE / "images"
    images.mkdir(exist_ok=True)
    draw(images / "attention.png", [parse("hard(p=0.5,k=5)"), parse("blur(sigma_max=1.5)")], tokens=24, seed=3)
    draw_speed(images / "speed.png")
    draw_training_speed(images / "training-speed.png")
