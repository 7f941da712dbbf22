"""How long a captured step of a study takes, alone on the GPU: for methods, and for settings of training.

    study_steps.py evidence/multi30k-en-de --set data.root=FOLDER --methods none r-drop --try training.own_kernels=true

Each --try is one row of settings for each method, beside the row without any. `attentiondrop compare --dry-run` times
the same steps, but for one set of settings.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import torch

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.runs.execute import data_for
from attentiondrop.experiments.train.loop import Training


def main() -> None:
    """Print one row for each method and each set of settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--size")
    parser.add_argument("--methods", nargs="+", required=True, metavar="METHOD")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--try", nargs="+", default=[], action="append", dest="tries", metavar="SETTING=VALUE")
    options = parser.parse_args()
    print("| settings | method | ms a step | peak GiB | |\n| --- | --- | ---: | ---: | --- |")
    for tried in ([], *options.tries):
        recipe = read_recipe(options.recipe, options.size, [*options.set, *tried])
        data = data_for(recipe)
        for text in options.methods:
            torch.cuda.reset_peak_memory_stats()
            training = Training(recipe, read_method(text), 0, data, Path(tempfile.mkdtemp()), print)
            step = 1e3 * statistics.median(training.step_times(2))
            peak = torch.cuda.max_memory_allocated() / 2**30
            words = ", ".join(f"`{one}`" for one in tried) or "-"
            print(f"| {words} | `{text}` | {step:.2f} | {peak:.1f} | {training.captured} |", flush=True)


if __name__ == "__main__":
    main()
