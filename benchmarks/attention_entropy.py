"""How perturbation changes the entropy of attention, over p, k and sigma: the table of docs/theory.md.

    attentiondrop train digits --method none --seed 0 --out runs/entropy      # and seeds 1 to 4
    python benchmarks/attention_entropy.py runs/entropy/runs/none/seed*

Prints Markdown: mean entropies over all layers and heads on the test part, and 95 % intervals over the runs.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import scipy.stats
import torch

from attentiondrop.experiments.runs.finished_run import load_run
from attentiondrop.theory import AttentionEntropy, entropy_sweep

SPECS = (
    *(f"hard(p={p},k=5)" for p in (0.05, 0.1, 0.2, 0.5)),
    *(f"hard(p=0.2,k={k})" for k in (1, 3, 10)),
    *(f"hard(p={p},k=5,fill=-inf)" for p in (0.1, 0.5)),
    *(f"blur(sigma_min={s},sigma_max={s})" for s in (0.3, 0.5, 1.0, 2.0)),
    *(f"blur(sigma_min={s},sigma_max={s},edges=renormalize)" for s in (0.5, 1.0)),
    "blur(sigma_max=0.5)",
    *(f"noise(sigma={s})" for s in (0.1, 0.5, 1.0)),
    "dropkey(p=0.1)",
)


def main() -> None:
    """Measure every run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--examples", type=int, default=128)
    args = parser.parse_args()
    sweeps: list[list[AttentionEntropy]] = []
    for folder in args.runs:
        run = load_run(folder)
        images = torch.cat([batch for batch, _ in run.data.batches("test", 512)])[: args.examples]
        sweeps.append(entropy_sweep(run.model, images, SPECS))
    print(f"| spec | before | after | change, 95 % interval over {len(sweeps)} runs | heads that fall |")
    print("|---|---|---|---|---|")
    for entries in zip(*sweeps, strict=True):
        print(row(entries))


def row(entries: tuple[AttentionEntropy, ...]) -> str:
    """One line: the same spec in all runs."""
    before, after = (statistics.fmean(getattr(entry, name) for entry in entries) for name in ("before", "after"))
    changes = [entry.change for entry in entries]
    mean, count = statistics.fmean(changes), len(changes)
    half = scipy.stats.t.ppf(0.975, count - 1) * statistics.stdev(changes) / count**0.5 if count > 1 else float("nan")
    heads = [
        later - earlier
        for entry in entries
        for stats in entry.sites.values()
        for earlier, later in zip(stats.entropy_before, stats.entropy_after, strict=True)
    ]
    falling = sum(change < 0 for change in heads)
    return (
        f"| `{entries[0].spec}` | {before:.3f} | {after:.3f} | {mean:+.3f} ± {half:.3f} | {falling} of {len(heads)} |"
    )


if __name__ == "__main__":
    main()
