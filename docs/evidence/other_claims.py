"""The claims of the paper that are no comparison of two methods in a results.csv: P8, P9, P11 and P14 to P21.

Every number comes from a committed file. Words alone are only where there is nothing to measure (P17, P19, P20).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ablations
import theory_tables
import verdicts
from result_files import csv_rows
from tables import UNDONE, final_runs

from attentiondrop.experiments.analysis.intervals import corrected, paired_difference, signed

DOCS = Path(__file__).parents[1]
RESULTS = DOCS / "evidence" / "results"
BENCHMARKS = DOCS.parent / "benchmarks" / "results"
ATTACKED = RESULTS / "cifar10-20pct-attack" / "results.csv"
PROTOCOL = "[protocol](protocol.md#the-paper-claim-by-claim)"
HEADINGS = "claim | the paper says | verdict | what was found | where"


@dataclass(frozen=True)
class Judged:
    """What became of a claim."""

    verdict: str
    found: str
    link: str


def rows(judged: Mapping[str, Judged]) -> list[list[str]]:
    """The rows of the table. What the paper says is read from the protocol."""
    said = {cells[0]: cells[1] for cells in markdown_table(DOCS / "evidence" / "protocol.md", "| # | the paper says |")}
    return [[name, said[name], each.verdict, each.found, each.link] for name, each in judged.items()]


def counted(judged: Mapping[str, Judged]) -> str:
    """The sentence of the summary."""
    found = [each.verdict for each in judged.values()]
    parts = [f"{found.count(words)} {words}" for words in verdicts.ALL if words in found]
    return f"The {len(found)} other claims of the paper: {', '.join(parts)}."


def judge(comparisons: Sequence[tuple[str, str]], elsewhere: Mapping[str, Judged]) -> dict[str, Judged]:
    """All of them, in order. `comparisons`: name and verdict of P1 to P7; `elsewhere`: P6, P10, P12, P13 and P21."""
    found = {
        "P8": attacks(),
        "P11": gradient_variance(),
        "P14": costs(),
        "P15": Judged(*ablations.high_rates(), "[ablations](ablations.md)"),
        "P16": Judged(*ablations.wide_blurs(), "[ablations](ablations.md)"),
        "P17": Judged(
            verdicts.NOT_REPRODUCED,
            "The paper's KL to a point mass is infinite, so its bound says nothing. Noise adds no KL, at any strength",
            "[theory](../theory.md#the-pac-bayes-bound)",
        ),
        "P18": entropy(),
        "P19": Judged(
            verdicts.NOT_REPRODUCED,
            "DropAttention (2019), DropKey (2022) and HiddenKey (2024) came before",
            "[protocol](protocol.md#the-paper-claim-by-claim)",
        ),
        "P20": Judged(verdicts.NOT_TESTABLE, "The data cannot be had here", "[protocol](protocol.md)"),
        **elsewhere,
    }
    found["P9"] = consistent_gains([*comparisons, ("P6", found["P6"].verdict), ("P8", found["P8"].verdict)])
    return dict(sorted(found.items(), key=lambda item: int(item[0][1:])))


def not_measured(missing: Sequence[str]) -> Judged:
    """A claim whose studies are not complete."""
    names = ", ".join(f"`{name}`" for name in missing)
    return Judged(verdicts.NOT_MEASURED, f"Needs studies that are not complete: {names}", PROTOCOL)


#: Study -> methods that were stopped with what they had ("Changed during study 3" of the protocol).
STOPPED = {
    "multi30k-en-de": (
        "dropout(p=0.1)",
        "hard(p=0.1,k=5,fill=-inf)+consistency(weight=0.5)",
        "blur(sigma_max=2.0)+consistency(weight=3.0)",
    )
}


def complete(folder: Path) -> bool:
    """Whether a study was published, and no run is missing but those of methods that were stopped."""
    file, stopped = folder / "results.csv", STOPPED.get(folder.name, ())
    return file.exists() and all(row["status"] not in UNDONE or row["method"] in stopped for row in csv_rows(file))


def consistent_gains(parts: Sequence[tuple[str, str]]) -> Judged:
    """P9: all of P1 to P8 succeed."""
    link = "[above](#comparisons-of-the-paper)"
    failed = list(dict.fromkeys(name for name, verdict in parts if verdict == verdicts.NOT_REPRODUCED))
    if failed:
        failed.sort(key=lambda name: int(name[1:]))
        words = f"It asks for all of P1 to P8. Not reproduced: {', '.join(failed)}"
        return Judged(verdicts.NOT_REPRODUCED, words, link)
    missing = list(dict.fromkeys(name for name, verdict in parts if verdict != verdicts.REPRODUCED))
    if missing:
        return Judged(verdicts.NOT_MEASURED, f"It asks for all of P1 to P8. Open: {', '.join(missing)}", link)
    return Judged(verdicts.REPRODUCED, "P1 to P8 are reproduced", link)


# --- P8: attacks -----------------------------------------------------------------------------------------------------

#: A standard-trained model above this accuracy would reproduce the claim.
ROBUST = 0.05
PGD = "PGD at 8/255, 20 steps"


def attacks() -> Judged:
    """P8: the accuracy that is left at 8/255, and the epsilon that would leave what the paper reports."""
    table = BENCHMARKS / "weak-attacks-h200-torch2.11.csv"
    weak = [float(row["accuracy"]) for row in csv_rows(table) if row["attack"] == PGD]
    checked = [row for row in final_runs(ATTACKED.parent) if row["attack_sound"]]
    sound = [float(row["accuracy_linf_8/255"]) for row in checked if row["attack_sound"] == "True"]
    if not weak or not sound:
        raise SystemExit(f"{table}, {ATTACKED}: expected runs under PGD at 8/255")
    if max(sound) > ROBUST:
        verdict = verdicts.REPRODUCED
    else:
        # The attacks of the second table have no soundness checks: a high accuracy there would not be enough.
        verdict = verdicts.NOT_REPRODUCED if max(weak) <= ROBUST else verdicts.NOT_RESOLVED
    level, epsilons = matching_epsilons(table.with_suffix(".md"))
    words = (
        f"At most {100 * max(sound):.1f} % under 20 steps (soundness checks passed: {len(sound)} of {len(checked)} "
        f"runs of study 1), and at most {100 * max(weak):.1f} % in the table of weak attacks ({len(weak)} runs). "
        f"{level} % are left at an epsilon of {min(epsilons):.2f} to {max(epsilons):.2f}/255"
    )
    return Judged(verdict, words, f"[attacks]({benchmark(table)}), [study 1](study-1.md#under-attack)")


def matching_epsilons(page: Path) -> tuple[str, list[float]]:
    """The accuracy in the middle of the paper's, and the epsilons (times 255) that leave it."""
    (line,) = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("PGD with 20 steps")]
    (level,) = re.findall(r"leaves ([\d.]+) %", line)
    return level, [float(epsilon) for epsilon in re.findall(r"([\d.]+)/255", line)]


# --- P11, P18: theory ------------------------------------------------------------------------------------------------

HARD, BLUR, NOISE = "hard(p=0.1,k=5)", "blur(sigma_max=0.5)", "noise(sigma=0.1)"


#: What `benchmarks/evidence.py variance` collects of runs of study 1.
VARIANCE = "cifar10-20pct-variance/variance.csv"


def gradient_variance() -> Judged:
    """P11: the variance with a method over that without, at the last weights of runs of study 1."""
    if not (RESULTS / VARIANCE).exists():
        return _only_digits()
    rows = csv_rows(RESULTS / VARIANCE)
    last = max(int(row["epoch"]) for row in rows)
    ratios: dict[str, dict[int, float]] = {}
    for row in rows:
        if int(row["epoch"]) == last:
            ratios.setdefault(row["method"], {})[int(row["seed"])] = float(row["perturbed"]) / float(row["base"])
    found = corrected([paired_difference(each, dict.fromkeys(each, 1.0)) for each in ratios.values()])
    parts, words = [], []
    for name, one in zip(ratios, found, strict=True):
        if one is None or one.holm_interval is None:
            parts.append(verdicts.NOT_RESOLVED)
            continue
        shown = one.times(100.0)
        parts.append(verdicts.REPRODUCED if shown.holm_interval.high < 0 else verdicts.NOT_REPRODUCED)
        words.append(f"`{name}` {signed(shown.mean, 1)} % {shown.holm_interval.text(1)}, {len(one.seeds)} seeds")
    return Judged(
        verdicts.together(parts),
        f"The variance with the method to that without, at the last weights of runs of study 1: {'; '.join(words)}",
        f"[table](results/{VARIANCE}), [theory](../theory.md#gradient-variance-variance-and-gradient_variance)",
    )


def _only_digits() -> Judged:
    """What is known without runs of study 1."""
    words = ", ".join(f"`{name}` {theory_tables.ratio_in_words(name, 'last')}" for name in (HARD, BLUR))
    return Judged(
        verdicts.NOT_MEASURED,
        f"Not measured on runs of study 1. On the digits, the variance over that of `none` after training: {words}",
        "[theory](../theory.md#gradient-variance-variance-and-gradient_variance)",
    )


def entropy() -> Judged:
    """P18: the entropy that each perturbation adds at the weights of a model trained without one."""
    found = theory_tables.changes()
    parts, words = [], []
    for name in (HARD, BLUR, NOISE):
        mean, half = found[name]
        parts.append(verdicts.REPRODUCED if mean - half > 0 else verdicts.NOT_REPRODUCED)
        words.append(f"`{name}` {theory_tables.change_in_words(name)}")
    return Judged(
        verdicts.together(parts),
        f"On the digits, at the weights of models trained with `none`, in nats: {', '.join(words)}. "
        "Neither masking nor blur raises the entropy of every possible row",
        "[theory](../theory.md#entropy-of-attention-attention_entropy)",
    )


# --- P14: costs ------------------------------------------------------------------------------------------------------

#: What the paper's own method costs, as a ratio of throughputs, at least.
ASKED = {HARD: 0.97, BLUR: 0.94, "blur+consistency": 0.50}


def costs() -> Judged:
    """P14: throughput over that of the plain model, ViT-B/16, in each mode that was measured."""
    files = [BENCHMARKS / f"vit-h200-torch2.11{mode}.csv" for mode in ("", "-eager")]
    captured = BENCHMARKS / "methods-h200-torch2.11.csv"
    ratios: dict[str, dict[str, float]] = {}
    memory = []
    for file in files:
        timed = {row["row"]: row for row in csv_rows(file) if row["status"] == "timed" and row["batch"] == "256"}
        mode = timed["SDPA"]["mode"]
        ratios[mode] = {name: float(timed[name]["ratio"]) for name in (HARD, BLUR)}
        more = [float(timed[name]["peak_gib"]) - float(timed["SDPA"]["peak_gib"]) for name in (HARD, BLUR)]
        memory.append(f"{mode} {signed(more[0], 2)} and {signed(more[1], 2)} GiB")
    # Here ratios are of times. The methods have the settings of above by default.
    times = {row["method"]: float(row["ratio"]) for row in csv_rows(captured) if row["model"] == "vit-b16"}
    defaults = {HARD: "hard", BLUR: "blur", "blur+consistency": "blur+consistency"}
    ratios["captured, batch 64"] = {name: 1 / times[default] for name, default in defaults.items()}
    worse = [f"{mode} `{name}`" for mode, found in ratios.items() for name in found if found[name] < ASKED[name]]
    parts = [
        verdicts.REPRODUCED if ratio >= ASKED[name] else verdicts.NOT_REPRODUCED
        for found in ratios.values()
        for name, ratio in found.items()
    ]
    words = "; ".join(
        f"{mode}: {', '.join(f'`{name}` {ratio:.3f}' for name, ratio in found.items())}"
        for mode, found in ratios.items()
    )
    pages = zip(("compiled", "eager", "captured"), (*files, captured), strict=True)
    return Judged(
        verdicts.together(parts),
        f"Throughput over that of plain attention: {words}. Asked: {', '.join(f'{x:.2f}' for x in ASKED.values())}. "
        f"Worse: {', '.join(worse) or 'none'}. Memory of hard masking and blur: {', '.join(memory)}. "
        "Two views were not measured at batch 256",
        ", ".join(f"[{mode}]({benchmark(file)})" for mode, file in pages),
    )


# --- reading ---------------------------------------------------------------------------------------------------------


def markdown_table(page: Path, start: str) -> list[list[str]]:
    """The cells of the rows of the one table whose headings start like this."""
    lines = page.read_text(encoding="utf-8").splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith(start)]
    found = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def benchmark(file: Path) -> str:
    """The address of the page beside a table of figures."""
    return f"../../benchmarks/results/{file.stem}.md"
