"""The measurements of docs/theory.md on scikit-learn's digits: certificates, gradient variance, entropy of attention.

    python benchmarks/theory_on_digits.py --work runs/theory [--out benchmarks/results]

Trains what is missing in the work folder (22 short runs), measures what was not measured there yet, and writes one CSV
file for each table, with a page that says how. About half an hour on two cores. `make evidence` writes the tables of
docs/theory.md from these files.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from attentiondrop.bench.environment import environment
from attentiondrop.experiments.runs.finished_run import load_run
from attentiondrop.experiments.studies.certify import certify_run
from attentiondrop.experiments.studies.gradient_study import variance_of_run
from attentiondrop.theory import entropy_sweep

SETTINGS = ("data.train_fraction=1.0", "training.epochs=20", "training.batch_size=64", "measure.probes=5")
#: Folder -> methods and seeds of a comparison. All methods of the demo are certified, with one seed.
STUDIES = {
    "five": (("none", "hard", "blur"), 5),
    "one": (("none", "dropout", "dropconnect", "r-drop", "hard", "blur", "blur+consistency"), 1),
}
PERTURBED = ("hard", "blur")
SPECS = (
    *(f"hard(p={p},k=5)" for p in (0.05, 0.1, 0.2, 0.5)),
    *(f"hard(p=0.2,k={k})" for k in (1, 3, 10)),
    *(f"hard(p={p},k=5,fill=-inf)" for p in (0.1, 0.5)),
    "blur(sigma_max=0.5)",
    *(f"blur(sigma_min={s},sigma_max={s})" for s in (0.3, 0.5, 1.0, 2.0)),
    *(f"noise(sigma={s})" for s in (0.1, 0.5, 1.0)),
    "dropkey(p=0.1)",
)
#: Test images whose attention is looked at.
EXAMPLES = 128

Row = dict[str, Any]


def train(work: Path) -> None:
    """Train the runs that are missing."""
    for name, (methods, seeds) in STUDIES.items():
        command = ["compare", "digits", "--set", *SETTINGS, "--methods", *methods, "--seeds", str(seeds)]
        subprocess.run([sys.executable, "-m", "attentiondrop", *command, "--out", str(work / name)], check=True)


def runs(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """Method, seed and folder of every run of a comparison."""
    for found in sorted((folder / "runs").glob("*/seed*"), key=lambda path: (path.parent.name, int(path.name[4:]))):
        request = json.loads((found / "run.json").read_text(encoding="utf-8"))
        yield request["method"], request["seed"], found


def certificates(work: Path) -> list[Row]:
    """Each bound of each method of the demo."""
    rows = []
    for method, _, folder in runs(work / "one"):
        found = certify_run(folder, on_progress=shown(f"certificates of {method}"))
        common: Row = {"method": method, "test_error": found.test_error}
        if found.posterior is not None:
            posterior = found.posterior
            common |= {"kl": posterior.bound.kl, "prior_value": posterior.prior_value}
            common |= {"prior_examples": posterior.prior_examples, "mean_error": posterior.deterministic_error}
        entries = [*found.held_out.certificates, *(found.posterior.certificates if found.posterior else ())]
        rows += [
            common | {"name": one.name, "value": one.value, "estimate": one.estimate, "n": one.n} for one in entries
        ]
    return rows


def variances(work: Path) -> list[Row]:
    """The parts of the gradient variance at the weights of each checkpoint: before training, best and last epoch."""
    rows = []
    for method, seed, folder in runs(work / "five"):
        if method.partition("(")[0] not in PERTURBED:
            continue
        found = variance_of_run(folder, on_progress=shown(f"variance of {method}, seed {seed}"))
        best = json.loads((folder / "result.json").read_text(encoding="utf-8"))["best_epoch"]
        for epoch, one in found.checkpoints:
            names = [
                name for name, at in (("before", 0), ("best", best), ("last", found.checkpoints[-1][0])) if at == epoch
            ]
            rows += [
                {"method": method, "seed": seed, "checkpoint": name, "epoch": epoch} | parts(one.total)
                for name in names
            ]
    return rows


def parts(terms: Any) -> Row:
    """The numbers of a decomposition. Intervals over examples are left out: the page has those over seeds."""
    return {name: value for name, value in terms.to_dict().items() if isinstance(value, float)}


def probes(work: Path) -> list[Row]:
    """The gradient variance while each run is trained, and its test accuracy."""
    rows = []
    for method, seed, folder in runs(work / "five"):
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            epoch = json.loads(line)
            if epoch["gradient_variance"] is not None:
                row = {"method": method, "seed": seed, "epoch": epoch["epoch"], "variance": epoch["gradient_variance"]}
                rows.append(row | {"test_accuracy": result["test"]["accuracy"]})
    return rows


def entropies(work: Path) -> list[Row]:
    """The mean entropy of attention rows with and without each spec, in models trained without one."""
    rows = []
    for method, seed, folder in runs(work / "five"):
        if method != "none":
            continue
        run = load_run(folder)
        images = torch.cat([batch for batch, _ in run.data.batches("test", 512)])[:EXAMPLES]
        for text, found in zip(SPECS, entropy_sweep(run.model, images, SPECS), strict=True):
            changes = [
                later - earlier
                for stats in found.sites.values()
                for earlier, later in zip(stats.entropy_before, stats.entropy_after, strict=True)
            ]
            rows.append(
                {
                    "spec": text,
                    "seed": seed,
                    "before": found.before,
                    "after": found.after,
                    "heads": len(changes),
                    "falling": sum(change < 0 for change in changes),
                }
            )
    return rows


TABLES: dict[str, Callable[[Path], list[Row]]] = {
    "certificates": certificates,
    "variance": variances,
    "probes": probes,
    "entropy": entropies,
}


def shown(what: str) -> Callable[[str, float], None]:
    """Progress on standard error, in one line that changes if a person looks at it."""
    end = "\r" if sys.stderr.isatty() else "\n"

    def show(label: str, share: float) -> None:
        print(f"{what}: {share:4.0%} {label:40s}", end=end, file=sys.stderr, flush=True)

    return show


def main() -> None:
    """Train, measure what is missing, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder for runs and measurements")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    train(options.work)
    machine = environment("cpu")
    name = f"theory-digits-{machine.slug}"
    for table, measure in TABLES.items():
        stored = options.work / f"{table}.json"
        if not stored.exists():
            stored.write_text(json.dumps(measure(options.work)), encoding="utf-8")
        rows = json.loads(stored.read_text(encoding="utf-8"))
        with (options.out / f"{name}-{table}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n", restval="")
            writer.writeheader()
            writer.writerows(rows)
    lines = (
        "# Theory on the digits",
        "",
        f"- device: {machine.device}",
        f"- versions: attentiondrop {machine.attentiondrop}, torch {machine.torch}, Python {machine.python}",
        f"- commit {machine.commit}, {machine.date}",
        "- command: `python benchmarks/theory_on_digits.py --work FOLDER`",
        "",
        "The tables are in `docs/theory.md`. The rows are in these files:",
        "",
        *(
            f"- [`{name}-{table}.csv`]({name}-{table}.csv): {(measure.__doc__ or '').strip()}"
            for table, measure in TABLES.items()
        ),
    )
    (options.out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
