"""The tables of docs/speed.md, and the sentence of the README, from the result files of the benchmarks.

`make evidence` writes them (docs/evidence/write.py), and a test fails if the pages differ.
"""

from __future__ import annotations

import csv
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
HARD, BLUR = "hard(p=0.1,k=5)", "blur(sigma_max=0.5)"
SDPA_DROPOUT = "SDPA dropout 0.1"
VIT, SMALL, SEQUENCES = (f"{name}-h200-torch2.11" for name in ("vit", "small-model", "sequence-step"))

#: What is trained -> result file, name of a row before its spec, column of the speed to that without a method, its text
#: in the table (with a link to the result file), and in the README.
TRAINED = {
    "ViT-B/16\n(224 x 224 pixels)": (VIT, "", "ratio", "[ViT-B/16]({}), batch size 256, compiled", "compiled ViT-B/16"),
    "small ViT\n(32 x 32 pixels)": (
        SMALL,
        "graph of compiled, ",
        "ratio",
        "a [small ViT]({}) on images of 32 x 32 pixels",
        "a small ViT",
    ),
    "translation\n(Multi30k)": (
        SEQUENCES,
        "translation, loop, ",
        "/ plain",
        "[translation]({}), recipe `multi30k`",
        "a translation model",
    ),
    "language model\n(attention dropout 0.2)": (
        SEQUENCES,
        "language, loop, ",
        "/ plain",
        "a [language model]({}) with attention dropout 0.2, recipe `tinyshakespeare`",
        "a language model with attention dropout",
    ),
}

#: ViT-B/16 without torch.compile. The run is older than the others, and older than the kernels for short rows.
VIT_EAGER = f"{VIT}-eager"

#: The run of `attentiondrop bench attention --graph`.
ATTENTION = "attention-h200-torch2.11-graph"
#: Batch, heads, key heads, tokens, head size, causal -> heading.
LONGER_ROWS = {
    ("64", "12", "12", "577", "64", "False"): "64x12x577x64",
    ("16", "16", "16", "1024", "64", "False"): "16x16x1024x64",
    ("4", "16", "16", "4096", "64", "False"): "4x16x4096x64",
    ("8", "32", "8", "2048", "128", "True"): "8x32x2048x128, causal, 8 key heads",
}
LONGER_METHODS = {
    SDPA_DROPOUT: "SDPA with its own dropout of 0.1",
    "flex_attention": "flex_attention without a method",
    HARD: f"`{HARD}`",
    BLUR: f"`{BLUR}`",
    "dropkey(p=0.1)": "`dropkey(p=0.1)`",
    "attndropout(p=0.1)": "`attndropout(p=0.1)`",
    "drophead(p=0.1)": "`drophead(p=0.1)`",
    "noise(sigma=0.1)": "`noise(sigma=0.1)`",
    "paper's hard masking": "the paper's listing of hard masking",
    "paper's blur": "the paper's listing of blur",
}


def rows_of(file: str) -> list[dict[str, str]]:
    """The rows of a result file."""
    with (RESULTS / f"{file}.csv").open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def number(file: str, row: str, column: str) -> float:
    """One number of a result file."""
    return next(float(one[column]) for one in rows_of(file) if one["row"] == row)


def training() -> str:
    """Speed of a training step with a method to that without."""
    lines = [f"| what is trained | `{HARD}` | `{BLUR}` |", "|---|---|---|"]
    for file, row, column, text, _ in TRAINED.values():
        cells = [f"{number(file, row + spec, column):.2f}" for spec in (HARD, BLUR)]
        lines.append(f"| {text.format(f'../benchmarks/results/{file}.md')} | {' | '.join(cells)} |")
    eager = [f"{number(VIT_EAGER, spec, 'ratio'):.2f}" for spec in (HARD, BLUR)]
    about = f"[ViT-B/16](../benchmarks/results/{VIT_EAGER}.md), batch size 256, eager (an earlier run)"
    lines.insert(3, f"| {about} | {' | '.join(eager)} |")
    return "\n".join(lines)


def in_a_sentence() -> str:
    """The same for the README: hard masking, and blur in brackets."""
    parts = []
    for file, row, column, _, text in TRAINED.values():
        hard, blur = (number(file, row + spec, column) for spec in (HARD, BLUR))
        parts.append(f"{text} {hard:.2f} ({blur:.2f})")
    hard, blur = (number(VIT_EAGER, spec, "ratio") for spec in (HARD, BLUR))
    eager = f"ViT-B/16 without `torch.compile`: {hard:.2f} ({blur:.2f}; an earlier run)."
    return f"{', '.join(parts[:-1])}, and {parts[-1]}. {eager}"


def small_models() -> str:
    """Images per second of a small model."""
    consistent = f"{BLUR}+consistency"
    modes = {
        "eager": ("eager, ", True),
        "`torch.compile`": ("torch.compile, ", True),
        "CUDA graph of the compiled step": ("graph of compiled, ", True),
        "`attentiondrop train`": ("train {}, capture auto", False),
        "`attentiondrop train`, `capture=off`": ("train {}, capture off", False),
    }
    found = {one["row"]: one for one in rows_of(SMALL)}
    lines = [f"| | plain | `{HARD}` | `{BLUR}` | blur + consistency |", "|---|---|---|---|---|"]
    for text, (pattern, has_ratio) in modes.items():
        cells = []
        for spec in ("none", HARD, BLUR, consistent):
            one = found.get(pattern.format(spec) if "{}" in pattern else pattern + spec)
            if one is None:
                cells.append("")
                continue
            speed = f"{round(float(one['img/s']), -2):,.0f}"
            cells.append(f"{speed} ({float(one['ratio']):.2f})" if has_ratio and spec != "none" else speed)
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines)


def vit() -> str:
    """A training step of ViT-B/16."""
    lines = ["| | speed | memory |", "|---|---|---|"]
    for one in rows_of(VIT):
        if one["kind"] != "plain":
            name = LONGER_METHODS[SDPA_DROPOUT] if one["row"] == SDPA_DROPOUT else f"`{one['row']}`"
            lines.append(f"| {name} | {float(one['ratio']):.2f} | {float(one['memory_ratio']):.2f} |")
    return "\n".join(lines)


def longer_ratios() -> dict[tuple[str, str], float]:
    """Method and shape -> time of attention alone to plain attention."""
    found: dict[tuple[str, str], float] = {}
    for one in rows_of(ATTENTION):
        shape = tuple(one[name] for name in ("batch", "heads", "key_heads", "length", "size", "causal"))
        if shape in LONGER_ROWS and one["plain_ratio"]:
            found[one["row"], LONGER_ROWS[shape]] = float(one["plain_ratio"])
    return found


def longer_in_a_sentence() -> str:
    """The range over all these shapes, for the README."""
    found = longer_ratios()
    ranges = []
    for method in (HARD, BLUR):
        ratios = [ratio for (one, _), ratio in found.items() if one == method]
        ranges.append(f"{min(ratios):.2f} to {max(ratios):.2f}")
    return f"with hard masking takes {ranges[0]} times as long, with blur {ranges[1]} times."


def longer_rows() -> str:
    """Attention alone beyond the kernels for short rows."""
    found = longer_ratios()
    lines = [f"| | {' | '.join(LONGER_ROWS.values())} |", "|---|" + "---|" * len(LONGER_ROWS)]
    for method, text in LONGER_METHODS.items():
        ratios = [found.get((method, shape)) for shape in LONGER_ROWS.values()]
        cells = ["" if ratio is None else f"{ratio:.{max(0, 3 - len(str(int(ratio))))}f}" for ratio in ratios]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines)
