"""Fine-tuning with little data: pretrain on the digits 0 to 4, then fine-tune on a tenth of the digits 5 to 9.

    python examples/fine_tuning.py --out runs/fine-tuning

The example makes its own checkpoint, a run of `attentiondrop`, so that it needs no download. Every command works on the
folder that it prints; any local checkpoint of timm takes the same place. Some minutes on two cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.report.write import write_report
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.studies.compare import compare


def write_set(path: Path, first: int) -> None:
    """Images of five digits from `first` on, as a file of arrays; every fifth image is for the test."""
    images, labels = load_digits(return_X_y=True)
    chosen = (labels >= first) & (labels < first + 5)
    images = (images[chosen].reshape(-1, 8, 8) / 16).astype(np.float32)
    labels = labels[chosen] - first
    test = np.arange(len(labels)) % 5 == 0
    np.savez(path, x_train=images[~test], y_train=labels[~test], x_test=images[test], y_test=labels[test])


class Printing:
    """Says what a study has to say."""

    def say(self, line: str) -> None:
        """A line for people."""
        print(line)

    def plan(self, total: int) -> None:
        """How many epochs there are."""

    def progress(self, label: str, done: float) -> None:
        """How many are done."""


def main() -> None:
    """Pretrain, fine-tune with each method from those weights and from new ones, and write both reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/fine-tuning"))
    parser.add_argument("--methods", nargs="+", default=["none", "dropout", "hard", "blur"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    files = {first: options.out / f"digits{first}.npz" for first in (0, 5)}
    for first, path in files.items():
        write_set(path, first)
    shared = ["data.name=npz", f"training.epochs={options.epochs}", "measure.probes=0"]

    first = read_recipe("digits", "demo", [*shared, f"data.root={files[0]}", "data.train_fraction=1.0"])
    compare(first, ["none"], 1, options.out / "pretrained", Printing())
    checkpoint = run_folder(options.out / "pretrained", "none", 0)

    tenth = [*shared, f"data.root={files[5]}", "data.train_fraction=0.1", "training.batch_size=16"]
    for name, changes in (("fine-tuned", [f"model.checkpoint={checkpoint}"]), ("from-scratch", [])):
        recipe = read_recipe("digits", "demo", [*tenth, *changes])
        compare(recipe, options.methods, options.seeds, options.out / name, Printing())
        print(f"{name}: {write_report(options.out / name).markdown}")


if __name__ == "__main__":
    main()
