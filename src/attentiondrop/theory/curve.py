"""The picture of the gradient variance during training, as in the paper's figure, with and without perturbation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .variance import GradientVariance

_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")


class Curve(NamedTuple):
    """A run: (epoch, variance) as measured during training, and the decomposition at its checkpoints."""

    label: str
    measured: Sequence[tuple[int, float]]
    checkpoints: Sequence[tuple[int, GradientVariance]]


def draw(path: Path, curves: Sequence[Curve]) -> None:
    """Write the picture: variances in the upper part, their ratio with its interval in the lower part."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 6.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # draws into memory: works without a screen
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for index, curve in enumerate(curves):
        _variances(above, curve, _COLOURS[index % len(_COLOURS)])
        _ratios(below, curve, _COLOURS[index % len(_COLOURS)])
    above.set_yscale("log")
    above.set_ylabel("variance of a mini-batch gradient (trace)")
    below.set_yscale("log")
    below.axhline(1.0, color="#999999", linewidth=0.8)
    below.set_ylabel("Var[g_AD] / Var[g_base]")
    below.set_xlabel("epoch")
    for axes in (above, below):
        axes.grid(color="#dddddd", linewidth=0.6)
    figure.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path)


def _variances(axes: Axes, curve: Curve, colour: str) -> None:
    if curve.measured:
        axes.plot(
            *zip(*curve.measured, strict=True), ":", color=colour, linewidth=1.2, label=f"{curve.label}: while training"
        )
    if not curve.checkpoints:
        return
    epochs = [epoch for epoch, _ in curve.checkpoints]
    for name, style, what in (("base", "o--", "without perturbation"), ("perturbed", "s-", "with perturbation")):
        values = [getattr(found.total, name) for _, found in curve.checkpoints]
        axes.plot(epochs, values, style, color=colour, markersize=4, linewidth=1.2, label=f"{curve.label}: {what}")


def _ratios(axes: Axes, curve: Curve, colour: str) -> None:
    points = [(epoch, found.total.ratio, *found.total.intervals["ratio"]) for epoch, found in curve.checkpoints]
    for epoch, ratio, low, high in points:
        axes.plot([epoch, epoch], [low, high], color=colour, linewidth=1.2)
        axes.plot([epoch], [ratio], "s", color=colour, markersize=4)
