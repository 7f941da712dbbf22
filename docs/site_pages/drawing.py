"""Small pictures of a row or a map before and after, as HTML in the colours of the page, light or dark."""

from __future__ import annotations

import base64
import html
import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

_BLUE, _ORANGE = (47, 129, 214), (226, 120, 30)
_WIDE, _TALL = 300, 90


class Picture(NamedTuple):
    """Numbers before and after, [keys] for bars, [rows, columns] for a map, and a sentence on what they are."""

    before: Any
    after: Any
    about: str
    labels: tuple[str, str] = ("before", "after")
    #: The row of a map that is also drawn as bars.
    row: int | None = None


def card(name: str, picture: Picture) -> str:
    """A box with the name of a method, its picture and its caption."""
    parts = [f"<figure><figcaption><code>{html.escape(name)}</code></figcaption>"]
    before, after = (np.asarray(one, dtype=float) for one in (picture.before, picture.after))
    if before.ndim == 2:
        parts.append(_maps(before, after, picture))
        if picture.row is not None:
            parts.append(_bars(before[picture.row], after[picture.row], picture.labels))
    else:
        parts.append(_bars(before, after, picture.labels))
    return "".join(parts) + f"<p>{html.escape(picture.about)}</p></figure>"


def cards(each: list[str]) -> str:
    """Boxes side by side, as many as fit."""
    return f'<div class="pictures">{"".join(each)}</div>'


def _maps(before: Any, after: Any, picture: Picture) -> str:
    most = max(np.abs(before).max(), 1e-12)
    sides = (
        f'<span><img src="{_image(values / most)}" alt="{html.escape(picture.about)}, {label}"><br>{label}</span>'
        for values, label in zip((before, after), picture.labels, strict=True)
    )
    return f'<div class="maps">{"".join(sides)}</div>'


def _image(values: Any) -> str:
    """One pixel for each number: blue above 0, orange below, the stronger the larger. 0 is the colour of the page."""
    pixels = np.zeros((*values.shape, 4), dtype=np.uint8)
    pixels[..., :3] = np.where((values < 0)[..., None], _ORANGE, _BLUE)
    pixels[..., 3] = np.round(255 * np.clip(np.abs(values), 0, 1))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _bars(before: Any, after: Any, labels: tuple[str, str]) -> str:
    low = min(0.0, before.min(), after.min())
    high = max(before.max(), after.max(), low + 1e-12)
    step = _WIDE / len(before)

    def bars(values: Any, shift: float, kind: str) -> str:
        shapes = []
        for place, value in enumerate(values):
            top, bottom = ((high - one) / (high - low) * _TALL for one in (max(value, 0.0), min(value, 0.0)))
            x, width, height = (place + shift) * step, 0.4 * step, max(bottom - top, 0.6)
            shapes.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>')
        return f'<g class="{kind}">{"".join(shapes)}</g>'

    ground = high / (high - low) * _TALL
    line = f'<line x1="0" x2="{_WIDE}" y1="{ground:.1f}" y2="{ground:.1f}"/>'
    key = "".join(
        f'<g class="{kind}"><rect x="{x}" y="{_TALL + 9}" width="9" height="9"/></g>'
        f'<text x="{x + 13}" y="{_TALL + 17}">{label}</text>'
        for kind, label, x in (("first", labels[0], 0), ("second", labels[1], _WIDE // 2))
    )
    drawn = bars(before, 0.08, "first") + bars(after, 0.52, "second") + line + key
    about = html.escape(f"bars: {labels[0]}, {labels[1]}")
    return f'<svg viewBox="0 -2 {_WIDE} {_TALL + 24}" role="img" aria-label="{about}">{drawn}</svg>'
