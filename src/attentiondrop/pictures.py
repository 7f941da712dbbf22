"""Pictures of what regularisers do to attention: one row and the whole map, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import oracle_draws, reference
from .specs import Spec
from .validation import integer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEFORE, _AFTER = "#999999", "#1f77b4"


def example_heads(tokens: int, heads: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Queries and keys [1, H, N, 8] that look like real ones: neighbours are similar, and two keys dominate."""
    smooth = np.exp(-0.5 * np.square((np.arange(tokens)[:, None] - np.arange(tokens)[None, :]) / 2.0))
    features = smooth @ rng.standard_normal((tokens, heads * 8))
    features = features / features.std()
    keys = features + 0.3 * rng.standard_normal(features.shape)
    keys[rng.choice(tokens, 2, replace=False)] *= 2.0
    q, k = (x.reshape(tokens, heads, 8).transpose(1, 0, 2)[None] for x in (features, keys))
    return 1.3 * q, k


def draw(path: Path, specs: Sequence[Spec], tokens: int = 24, seed: int = 0, is_causal: bool = False) -> None:
    """Write a picture with a line for each spec: its effect on one row, then the map of a head before and after."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rng = np.random.default_rng(integer("seed", seed, minimum=0))
    heads = 4
    q, k = example_heads(tokens, heads, rng)
    before = reference.attention(q, k, k, is_causal=is_causal).weights[0, 0]
    # The row with the largest weight shows best what happens to a dominant key.
    row = int(before.max(axis=-1).argmax()) if not is_causal else tokens - 1
    figure = Figure(figsize=(11, 2.7 * len(specs) + 0.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)  # draws into memory: works without a screen
    grid = figure.subplots(len(specs), 3, squeeze=False, width_ratios=[2.2, 1, 1])
    for axes, spec in zip(grid, specs, strict=True):
        draws = oracle_draws.sample(spec, (1, heads, tokens, tokens), rng)
        after = reference.attention(q, k, k, spec, draws, is_causal=is_causal).weights[0, 0]
        _row(axes[0], before[row], after[row], f"{spec}: query {row}")
        _map(axes[1], before, "before", before.max())
        _map(axes[2], after, "after", before.max())
    figure.savefig(path)


def _row(axes: Axes, before: Any, after: Any, title: str) -> None:
    places = np.arange(len(before))
    axes.bar(places - 0.2, before, 0.4, label=f"before, entropy {_entropy(before):.2f}", color=_BEFORE)
    axes.bar(places + 0.2, after, 0.4, label=f"after, entropy {_entropy(after):.2f}", color=_AFTER)
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("key", fontsize=8)
    axes.set_ylabel("weight", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _map(axes: Axes, weights: Any, title: str, most: float) -> None:
    axes.imshow(weights, cmap="viridis", vmin=0.0, vmax=most, interpolation="nearest")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("key", fontsize=8)
    axes.set_ylabel("query", fontsize=8)
    axes.tick_params(labelsize=8)


def _entropy(weights: Any) -> float:
    total = weights.sum()
    share = weights / total if total > 0 else weights
    return float(-(share * np.log(np.where(share > 0, share, 1.0))).sum())
