"""Do the studies of docs/evidence in slices, on a machine that keeps nothing between them.

    evidence.py run RECIPE [--size S] [--set ...] [--methods ...] --records FILE.tar.gz --minutes 9 --workers 8
    evidence.py queue --data FOLDER              goes on with all studies of docs/evidence/queue.yaml, in their order
    evidence.py rank FILE.tar.gz                 what the screen chose: methods by their validation scores
    evidence.py choose FILE.tar.gz               the methods of a screen that go on, for --methods of the size confirm
    evidence.py publish FILE.tar.gz FOLDER       results.csv, costs.json and recipe.yaml for docs/evidence/results
    evidence.py variance FOLDER FILE.csv         what `attentiondrop variance` measured in the runs of a folder

`run` unpacks the records of earlier slices, if the file exists, runs what is missing, and packs the records again: at
its end, and every minute, so that a slice that is killed loses little. It starts no run that would end after its
minutes, going by the runs before it. Records are the plan, the request, the epochs and the result of each run that has
ended, and the measured costs: no weights, no states. With them, `attentiondrop compare --out` knows what is done.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shlex
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import choice
import yaml
from evidence_queue import Queued, keep_weights, progress, read_queue

from attentiondrop.errors import ArgumentError, AttentionDropError, bad_argument
from attentiondrop.experiments.analysis.collect import summarise
from attentiondrop.experiments.analysis.summary import Summary
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.config.schema import Recipe
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.report.runs_csv import runs_csv
from attentiondrop.experiments.runs.deadline import Deadline
from attentiondrop.experiments.runs.folders import run_folders
from attentiondrop.experiments.runs.pool import OutOfTimeError, Where
from attentiondrop.experiments.runs.store import REQUEST, RESULT, TRACEBACK
from attentiondrop.experiments.studies.ablate import ablate
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.studies.plan import ABLATION, COMPARISON, Entry, Study, read_study
from attentiondrop.experiments.studies.step_costs import COSTS, measure_costs
from attentiondrop.experiments.train.epoch_log import EPOCHS

QUEUE = Path(__file__).parents[1] / "docs" / "evidence" / "queue.yaml"
PLANS = (COMPARISON, ABLATION, COSTS)
#: Of each run that has ended.
OF_A_RUN = (REQUEST, EPOCHS, RESULT, TRACEBACK)
#: What --minutes says.
MINUTES = "no run starts that would end after these, going by those before it (default: %(default)s)"
#: Seconds after which the records are packed again.
PACK_EVERY = 60.0


class Lines:
    """Prints what a study says, with the seconds since the beginning. Now and then it calls `keep`."""

    def __init__(self, keep: Callable[[], object]) -> None:
        self.start = self.kept = time.monotonic()
        self.keep = keep

    def say(self, line: str) -> None:
        """One line."""
        print(f"{time.monotonic() - self.start:7.1f} s  {line}", flush=True)

    def plan(self, total: int) -> None:
        """So many epochs are to be trained."""
        self.say(f"{total} epochs to train")

    def progress(self, label: str, done: float) -> None:
        """Prints nothing: lines of finished runs say enough."""
        if time.monotonic() - self.kept >= PACK_EVERY:
            self.keep()
            self.kept = time.monotonic()


def records(folder: Path) -> Iterator[Path]:
    """The small files with which a study can be continued."""
    yield from (folder / name for name in PLANS if (folder / name).exists())
    for _, run in run_folders(folder):
        if (run / RESULT).exists():
            yield from (run / name for name in OF_A_RUN if (run / name).exists())


def pack(folder: Path, file: Path) -> int:
    """Write the records of a folder into one file, whole or not at all. Returns how many runs it holds."""
    content = io.BytesIO()
    found = list(records(folder))
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path in found:
            archive.add(path, path.relative_to(folder).as_posix())
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_bytes(content.getvalue())
    temporary.replace(file)
    return sum(path.name == RESULT for path in found)


def unpack(file: Path, folder: Path) -> None:
    """Read the records of a file into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(file) as archive:
            archive.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise ArgumentError(f"records {file}: expected a file of records, received: {error}") from None


def run(options: argparse.Namespace) -> int:
    """One slice of a study."""
    recipe = read_recipe(options.recipe, options.size, options.set)
    own = nullcontext(options.out) if options.out else tempfile.TemporaryDirectory(prefix="evidence-")
    with own as folder:
        if options.records.exists():
            unpack(options.records, Path(folder))
        return slice_of(recipe, Path(folder), options, command_line(sys.argv[1:]))


def slice_of(
    recipe: Recipe,
    folder: Path,
    options: argparse.Namespace,
    command: str,
    stopped: Callable[[Path], Sequence[Entry]] = lambda folder: (),
) -> int:
    """Do the runs that are missing in the folder of a study. Returns 0, or 3 if the time was over before.

    `stopped` reads the methods that get no more runs from the plan in a folder.
    """
    lines = Lines(lambda: pack(folder, options.records))
    until = time.time() + 60 * options.minutes
    where, status = Where(options.workers, deadline=Deadline(until)), 0
    try:
        if options.ablate:
            ablate(recipe, {}, recipe.seeds, folder, lines, command=command, where=where)
        else:
            methods, others = options.methods or recipe.methods, stopped(folder)
            compare(recipe, methods, recipe.seeds, folder, lines, command=command, where=where, stopped=others)
            lines.say("all runs have ended")
            show_validation(summarise(read_study(folder)))
            if not options.no_costs and costs(recipe, folder, lines, until):
                status = 3
    except OutOfTimeError as error:
        lines.say(str(error))
        status = 3
    finally:
        lines.say(f"{options.records}: {pack(folder, options.records)} runs")
    return status


def queue(options: argparse.Namespace) -> int:
    """Go on with the studies that are left, as long as there is time."""
    studies, until, status = read_queue(options.file), time.monotonic() + 60 * options.minutes, 0
    if unknown := [name for name in options.names if name not in {one.name for one in studies}]:
        raise bad_argument("names", f"studies of {options.file}: {', '.join(one.name for one in studies)}", unknown)
    for one in studies:
        left = (until - time.monotonic()) / 60
        if options.names and one.name not in options.names:
            continue
        if one.waits_for is not None:
            print(f"== {one.name}: left out, it waits for {one.waits_for}", flush=True)
            continue
        if status == 3 or (left <= 0 and not options.list):
            return 3
        try:
            status = max(status, go_on(one, options, left))
        except AttentionDropError as error:
            print(f"== {one.name}: {error}", file=sys.stderr, flush=True)
            status = 2
    return status


def go_on(one: Queued, options: argparse.Namespace, minutes: float) -> int:
    """Do what is left of one study of the queue."""
    records, recipe = options.records / f"{one.name}.tar.gz", one.read(options.data, options.set)
    with tempfile.TemporaryDirectory(prefix="evidence-") as out:
        if records.exists():
            unpack(records, Path(out))
        ended, runs = progress(one, recipe, Path(out))
        print(f"== {one.name}: {ended} of {runs} runs have ended", flush=True)
        if options.list:
            return 0
        given = vars(options) | vars(one) | {"minutes": minutes, "records": records}
        given["no_costs"] = options.no_costs or one.no_costs
        command, status, begun = one.command(options.set), 0, time.monotonic()
        if one.later:
            others = argparse.Namespace(**given | {"methods": one.first(recipe), "no_costs": True})
            status = slice_of(recipe, Path(out), others, command, one.without_later)
            given["minutes"] -= (time.monotonic() - begun) / 60
        if status == 0:
            status = slice_of(recipe, Path(out), argparse.Namespace(**given), command, one.without)
        if one.keeps is not None and status == 0:
            keep_weights(Path(out), options.data / one.keeps)
    return status


def command_line(given: Sequence[str]) -> str:
    """The command as typed, without the files of this machine: it becomes a part of the records."""
    words = list(given)
    for option in ("--records", "--out"):
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    return shlex.join(["benchmarks/evidence.py", *words])


def costs(recipe: Recipe, folder: Path, lines: Lines, until: float) -> int:
    """Measure the step of every method that was chosen, alone. Returns how many are left. Each is kept at once."""
    comparison = read_study(folder).comparison
    methods = [] if comparison is None else [entry.method for entry in comparison.methods if entry.method is not None]

    def say(line: str) -> None:
        lines.say(line)
        lines.keep()

    found = measure_costs(recipe, methods, folder, say, lambda: time.time() > until)
    if left := sum(read_method(method).text not in found for method in methods):
        lines.say(f"the time is over, {left} costs are left: run the same command to go on")
    return left


@contextmanager
def opened(file: Path) -> Iterator[Study]:
    """The study in a file of records, unpacked for as long as it is looked at."""
    with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
        unpack(file, Path(folder))
        yield read_study(Path(folder))


def rank(options: argparse.Namespace) -> int:
    """Methods by their mean score on the validation part over the final seeds: no test score is shown."""
    with opened(options.records) as study:
        show_validation(summarise(study))
    return 0


def show_validation(summary: Summary) -> None:
    """Print the methods, the best first."""
    metric = summary.metrics.primary
    rows = []
    for row in summary.rows:
        found = [each.result.validation[metric.name] for each in row.outcomes if each.result and each.result.validation]
        if found:
            rows.append((metric.better(sum(found) / len(found)), len(found), row.entry.name, row.label))
    for score, seeds, name, label in sorted(rows, reverse=True):
        print(f"{abs(score) * metric.factor:8.{metric.digits}f}  validation, seeds: {seeds}  {name}  ->  {label}")


def choose(options: argparse.Namespace) -> int:
    """The methods of a screen that are confirmed, as words for a shell, after the reasons for the last ones."""
    with opened(options.records) as study:
        found = choice.choose(study)
    print(*found.reasons, shlex.join(found.methods), sep="\n")
    return 0


def publish(options: argparse.Namespace) -> int:
    """Small files to commit: every run in a table, the costs, the recipe."""
    target: Path = options.folder
    with opened(options.records) as study:
        text = runs_csv(summarise(study))
        measured = study.folder / COSTS
        step_costs = json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else None
    target.mkdir(parents=True, exist_ok=True)
    (target / "results.csv").write_text(text, encoding="utf-8")
    file = target / "recipe.yaml"
    commit = options.commit
    if commit is None and file.exists():
        commit = yaml.safe_load(file.read_text(encoding="utf-8"))["commit"]
    origin = {"command": study.plan.command, "commit": commit, "recipe": without_places(study.plan.recipe)}
    file.write_text(yaml.safe_dump(origin, sort_keys=False, allow_unicode=True), encoding="utf-8")
    if step_costs is not None:
        (target / COSTS).write_text(json.dumps(step_costs, indent=1) + "\n", encoding="utf-8")
    print(f"{target}: {len(text.splitlines()) - 1} runs")
    return 0


def without_places(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe whose files have no absolute paths: only their names tell anything on another machine."""
    found = {**recipe, "data": {**recipe["data"]}, "model": {**recipe["model"]}}
    for part, name in (("data", "root"), ("model", "checkpoint")):
        place = found[part].get(name)
        if place is not None and Path(place).is_absolute():
            found[part][name] = Path(place).name
    return found


def variance(options: argparse.Namespace) -> int:
    """The variances of the gradient of all runs, without those of single layers."""
    rows = []
    for _, folder in run_folders(options.folder):
        if (file := folder / "variance.json").exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            for one in found["checkpoints"]:
                rows.append(
                    [found["method"], found["seed"], one["epoch"], one["total"]["base"], one["total"]["perturbed"]]
                )
    if not rows:
        raise ArgumentError(
            f"{options.folder}: expected runs with a variance.json, which `attentiondrop variance` writes"
        )
    options.file.parent.mkdir(parents=True, exist_ok=True)
    with options.file.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows([["method", "seed", "epoch", "base", "perturbed"], *rows])
    print(f"{options.file}: {len(rows)} checkpoints")
    return 0


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="one slice")
    one.add_argument("recipe")
    one.add_argument("--size")
    one.add_argument("--set", nargs="+", action="extend", default=[], metavar="SETTING=VALUE")
    one.add_argument("--methods", nargs="+", action="extend", metavar="METHOD")
    one.add_argument("--ablate", action="store_true", help="the ablations of the recipe instead of a comparison")
    one.add_argument("--records", type=Path, required=True, metavar="FILE.tar.gz")
    one.add_argument("--minutes", type=float, default=9.0, help=MINUTES)
    one.add_argument("--no-costs", action="store_true", help="time no steps: another slice of the study follows")
    one.add_argument("--workers", type=int, default=8, help="runs at once (default: %(default)s)")
    one.add_argument("--out", help="a folder to work in, which stays (default: a temporary one)")
    one.set_defaults(act=run)
    all_left = commands.add_parser("queue", help="go on with all studies that are left")
    all_left.add_argument("names", nargs="*", metavar="NAME", help="only these studies (default: all of them)")
    all_left.add_argument("--file", type=Path, default=QUEUE, help="the studies (default: docs/evidence/queue.yaml)")
    all_left.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="the files that the queue names")
    all_left.add_argument("--records", type=Path, default=QUEUE.parent / "records", metavar="FOLDER")
    all_left.add_argument("--set", nargs="+", action="extend", default=[], metavar="SETTING=VALUE")
    all_left.add_argument("--minutes", type=float, default=9.0, help=MINUTES)
    all_left.add_argument("--no-costs", action="store_true", help="time no steps")
    all_left.add_argument("--workers", type=int, default=8, help="runs at once (default: %(default)s)")
    all_left.add_argument("--list", action="store_true", help="only say how many runs are left")
    all_left.set_defaults(act=queue)
    two = commands.add_parser("rank", help="methods by their validation scores")
    two.add_argument("records", type=Path, metavar="FILE.tar.gz")
    two.set_defaults(act=rank)
    chosen = commands.add_parser("choose", help="the methods of a screen that go on")
    chosen.add_argument("records", type=Path, metavar="FILE.tar.gz")
    chosen.set_defaults(act=choose)
    three = commands.add_parser("publish", help="small files to commit")
    three.add_argument("records", type=Path, metavar="FILE.tar.gz")
    three.add_argument("folder", type=Path)
    three.add_argument("--commit", help="of the code that ran, where the machine had no git (else: that of the folder)")
    three.set_defaults(act=publish)
    four = commands.add_parser("variance", help="the variances of the gradient, in one table")
    four.add_argument("folder", type=Path)
    four.add_argument("file", type=Path, metavar="FILE.csv")
    four.set_defaults(act=variance)
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    options = arguments().parse_args(given)
    try:
        act: int = options.act(options)
    except AttentionDropError as error:
        print(f"evidence.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: the records hold all runs that had ended; the same command goes on", file=sys.stderr)
        return 130
    return act


if __name__ == "__main__":
    sys.exit(main())
