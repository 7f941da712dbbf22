"""How long a captured step of a study takes, alone on the GPU: for methods, and for settings of training.

    study_steps.py evidence/multi30k-en-de --set data.root=FOLDER --methods none r-drop --try training.own_kernels=true

Each --try is one row of settings for each method, beside the row without any. `attentiondrop compare --dry-run` times
the same steps, but for one set of settings. --kernels N adds what the GPU does in such a step: the N kernels that take
the most time, and for how much of the step it does nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.runs.execute import data_for
from attentiondrop.experiments.train.loop import Training


def kernels(training: Training, step: float, count: int) -> str:
    """A table of the kernels of one epoch, as parts of a step of so many milliseconds."""
    training._train(1)  # the steps were released after they had been timed: this captures them again
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        training._train(2)
    per_step = [(each.self_device_time_total / 1e3 / training.steps, each) for each in found.key_averages()]
    per_step.sort(key=lambda pair: pair[0], reverse=True)
    busy = sum(time for time, _ in per_step)
    calls = sum(each.count for _, each in per_step) / training.steps
    lines = [
        f"The GPU works for {busy:.2f} of {step:.2f} ms, in {calls:.0f} kernels a step.",
        "| ms a step | calls a step | kernel |\n| ---: | ---: | --- |",
    ]
    lines += [
        f"| {time:.3f} | {each.count / training.steps:.1f} | `{each.key[:110]}` |" for time, each in per_step[:count]
    ]
    return "\n".join(lines)


def main() -> None:
    """Print one row for each method and each set of settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--size")
    parser.add_argument("--methods", nargs="+", required=True, metavar="METHOD")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--try", nargs="+", default=[], action="append", dest="tries", metavar="SETTING=VALUE")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="show the N that take the most time")
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
            if options.kernels:
                print(kernels(training, step, options.kernels), flush=True)


if __name__ == "__main__":
    main()
