"""Tables of docs/keras.md, docs/long-sequences.md and docs/speed-goals.md, from the result files of the benchmarks.

`make evidence` writes them (docs/evidence/write.py), and a test fails if the pages differ.
"""

from __future__ import annotations

import speed_tables
from speed_tables import BLUR, HARD

KERAS, LONG_ROWS = "keras-step-cpu-keras3.15", "long-rows-h200-torch2.11"
SHORT_ROWS, INSTRUCTIONS = "short-rows-h200-torch2.11", "instruction-profile-sm90"
STOCK = "stock layer"
#: Row of the result file -> row of the table.
LONG = {
    "SDPA": "plain SDPA",
    "hard": f"`{HARD}`",
    "blur": f"`{BLUR}`",
    "hard, window": "hard masking, window",
    "blur, window": "blur, window",
}
LENGTHS = ("8192", "16384", "32768")
#: Mark in docs/speed-goals.md -> method and shapes of longer rows.
GOALS = {
    "hard 577": (HARD, ["64x12x577x64"]),
    "hard 1024": (HARD, ["16x16x1024x64", "8x32x2048x128, causal, 8 key heads"]),
    "blur 577": (BLUR, ["64x12x577x64", "16x16x1024x64"]),
    "blur 2048": (BLUR, ["8x32x2048x128, causal, 8 key heads"]),
}
#: The same for shapes of short rows, with hard masking.
SHORT_GOALS = {"hard 197": ["256x12x197x64", "64x16x256x64"], "hard 128": ["32x8x128x64"]}
#: Kernel -> row of the table of instructions, and method -> column.
KERNELS = {"forward_kernel": "forward", "query_kernel": "gradient of queries", "key_kernel": "gradient of keys"}
COUNTED = {"nothing": "no method", "attndropout": "dropout", "dropkey": "DropKey", "hard": "hard masking"}


def keras() -> str:
    """The time of a step in Keras to that of the stock layer."""
    found: dict[str, list[str]] = {}
    for row in speed_tables.rows_of(KERAS):
        low, middle, high = (float(row[name]) for name in ("ratio_20", "ratio", "ratio_80"))
        found.setdefault(row["row"], []).append(f"{middle:.2f} ({low:.2f} - {high:.2f})")
    lines = ["| step time / stock layer | TensorFlow | JAX |", "|---|---|---|"]
    return "\n".join(lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in found.items() if name != STOCK])


def long_sequences() -> str:
    """Causal attention alone, to plain SDPA without a window, and its memory."""
    rows = {(row["row"], row["length"]): row for row in speed_tables.rows_of(LONG_ROWS) if row["causal"] == "True"}
    lines = ["| causal | 8,192 tokens | 16,384 | 32,768 | MiB at 32,768 |", "|---|---|---|---|---|"]
    for name, text in LONG.items():
        own = [rows[name, length] for length in LENGTHS]
        cells = [_ratio(float(row["/ SDPA"])) for row in own]
        if name == "SDPA":
            cells = [f"{cell} ({float(row['step ms']):.2f} ms)" for cell, row in zip(cells, own, strict=True)]
        lines.append(f"| {text} | {' | '.join(cells)} | {float(own[-1]['extra MiB']):.0f} |")
    return "\n".join(lines)


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def goals() -> dict[str, str]:
    """Mark -> what was measured."""
    found = speed_tables.longer_ratios()
    longer = {name: [found[method, shape] for shape in shapes] for name, (method, shapes) in GOALS.items()}
    short = short_rows()
    rest = {name: [short[shape] for shape in shapes] for name, shapes in SHORT_GOALS.items()}
    return {name: "; ".join(f"{ratio:.2f}" for ratio in ratios) for name, ratios in (longer | rest).items()}


def short_rows() -> dict[str, float]:
    """Shape -> the time of hard masking in the kernels for short rows, to plain attention."""
    found: dict[str, float] = {}
    for cells in _cells(SHORT_ROWS):
        if len(cells) == 8 and cells[2] == HARD and cells[0]:
            found[cells[0]] = float(cells[6])
    return found


def instructions() -> str:
    """Instructions of a lane for one logit, at 577 tokens."""
    found: dict[tuple[str, str], str] = {}
    for cells in _cells(INSTRUCTIONS):
        if cells[0] == "64x12x577x64":  # the first table of the page; another one has times
            found.setdefault((cells[2], cells[1]), cells[-1])
    lines = [f"| | {' | '.join(COUNTED.values())} |", "|---|" + "---:|" * len(COUNTED)]
    for kernel, text in KERNELS.items():
        lines.append(f"| {text} | {' | '.join(found[kernel, method] for method in COUNTED)} |")
    return "\n".join(lines)


def _cells(file: str) -> list[list[str]]:
    """The cells of all rows of the tables of a page of results."""
    lines = (speed_tables.RESULTS / f"{file}.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
