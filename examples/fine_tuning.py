"""Fine-tuning with little data: pretrain on clear digits, then fine-tune on a tenth of other digits, faint and noisy.

    python examples/fine_tuning.py --out runs/fine-tuning

The example makes its own checkpoint, a run of `attentiondrop`, so that it needs no download. Every command works on the
folder that it prints; any local checkpoint of timm takes the same place. Some minutes on two cores.
"""

import argparse
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from sklearn.datasets import load_digits

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.report.write import write_report
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.studies.compare import compare

#: Hears what a study says; the number of epochs and of those done are not shown.
PRINTING = SimpleNamespace(say=print, plan=lambda total: None, progress=lambda label, done: None)


def write_set(path: Path, *, faint: bool) -> None:
    """Every second image of the digits as a file of arrays, clear ones or the others; a fifth of them for the test."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images.reshape(-1, 8, 8) / 16).astype(np.float32)[faint::2], labels[faint::2]
    if faint:
        noise = np.random.default_rng(0).standard_normal(images.shape).astype(np.float32)
        images = np.clip(0.6 * images + 0.15 * noise, 0, 1)
    test = np.arange(len(labels)) % 5 == 0
    np.savez(path, x_train=images[~test], y_train=labels[~test], x_test=images[test], y_test=labels[test])


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path("runs/fine-tuning"))
parser.add_argument("--methods", nargs="+", default=["none", "dropout", "hard", "blur"])
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--epochs", type=int, default=20)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
clear, faint = options.out / "clear.npz", options.out / "faint.npz"
write_set(clear, faint=False)
write_set(faint, faint=True)
shared = ["data.name=npz", f"training.epochs={options.epochs}", "measure.probes=0"]

first = read_recipe("digits", "demo", [*shared, f"data.root={clear}", "data.train_fraction=1.0"])
compare(first, ["none"], 1, options.out / "pretrained", PRINTING)
checkpoint = run_folder(options.out / "pretrained", "none", 0)

tenth = [*shared, f"data.root={faint}", "data.train_fraction=0.1", "training.batch_size=16"]
for name, changes in (("fine-tuned", [f"model.checkpoint={checkpoint}"]), ("from-scratch", [])):
    recipe = read_recipe("digits", "demo", [*tenth, *changes])
    compare(recipe, options.methods, options.seeds, options.out / name, PRINTING)
    print(f"{name}: {write_report(options.out / name).markdown}")
