"""Compare several methods with one recipe: tune each on the validation part, then train all with the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import ArgumentError, bad_argument
from ..config.schema import Recipe
from ..methods.grids import candidates
from ..methods.groups import expanded
from ..methods.parse import read_methods
from ..runs.execute import data_for, read_data_anew
from ..runs.identity import recipe_of
from ..runs.job import Job, finished
from ..runs.kinds import FINAL, TUNING
from ..runs.pool import Listener, OutOfTimeError, Where, run_jobs
from ..runs.store import Result
from ..runs.worker_count import with_workers
from ..tasks.metrics import Metrics
from ..tasks.registry import find_task
from ..train.accelerator import on_this_machine, processes
from .claiming import claim, renew
from .equal_trials import equal_trials
from .plan import Comparison, Entry


def compare(
    recipe: Recipe,
    methods: Sequence[str],
    seeds: int,
    out: Path,
    listener: Listener,
    *,
    command: str = "",
    where: Where | None = None,
    trackers: tuple[str, ...] = (),
    overwrite: bool = False,
    stopped: Sequence[Entry] = (),
) -> Comparison:
    """Tune and train every method with `seeds` seeds from `recipe.first_seed` on. Keeps runs of this recipe in `out`.

    If `out` holds finished runs of another recipe, the call is refused, unless `overwrite` allows to erase them.
    `methods` are texts of methods, or names of groups. The seeds are the outer loop: after an interruption, the
    finished runs compare all methods on fewer seeds. Methods whose trials are all finished in `out` do not wait for the
    trials of the others. `stopped` are methods of an earlier call that get no more runs: they keep their rows.
    """
    check_alone("compare")
    read_data_anew()
    methods = expanded(methods)
    each = read_methods(methods)
    texts = {*methods, *(method.text for method in each)}
    if both := [entry.name for entry in stopped if {entry.name, entry.method} & texts]:
        raise bad_argument("stopped", "other methods than those that are trained", both)
    recipe = on_this_machine(recipe)
    checksums = data_for(recipe).checksums
    tuning, metrics = recipe.tuning, find_task(recipe.task).metrics
    trials = _trials(recipe, methods)
    tuned = [text for text in methods if len(trials[text]) > 1]
    entries = {text: Entry(text, None if text in tuned else trials[text][0], trials[text][:0]) for text in methods}
    chosen_seeds = recipe.seed_numbers(seeds)
    final_epochs = seeds * sum(method.training(recipe.training).epochs for method in each)
    where = with_workers(where or Where(), recipe, seeds * len(methods), final_epochs)

    def study() -> Comparison:
        methods = [*entries.values(), *stopped]
        return Comparison(command, recipe.to_dict(), chosen_seeds, tuning.seed, methods, checksums)

    def job(kind: str, method: str, seed: int) -> Job:
        return _job(recipe, kind, method, seed, out, where, trackers, overwrite)

    def finals() -> list[Job]:
        chosen = [entry.method for entry in entries.values() if entry.method is not None]
        return [job(FINAL, method, seed) for seed in chosen_seeds for method in chosen]

    jobs = {(text, trial): job(TUNING, trial, tuning.seed) for text in tuned for trial in trials[text]}
    claim(out, study(), [*jobs.values(), *finals()], overwrite)

    def decide(results: Mapping[Job, Result]) -> None:
        """Choose a setting for each method whose trials have all ended."""
        for text in [text for text in tuned if entries[text].method is None]:
            best = _chosen(metrics, {trial: jobs[text, trial] for trial in trials[text]}, results)
            if best is not None:
                ended = any(results[jobs[text, trial]].validation is not None for trial in trials[text])
                tried = len(trials[text])
                said = f"{best} did best of {tried}" if ended else f"none of {tried} trials finished: {best} is taken"
                listener.say(f"{text}: {said}")
                entries[text] = Entry(text, best, trials[text])

    if tuned:
        listener.say(f"tuning: {len(set(jobs.values()))} trials on the validation part")
        for line in equal_trials(recipe.training, trials):
            listener.say(line)
        decide(finished(list(jobs.values()), checksums))
        renew(out, study())  # if this is interrupted, the report knows of these methods
    first = finals()
    later = max(0, final_epochs - sum(one.epochs for one in first))
    try:
        results = run_jobs([*jobs.values(), *first], checksums, listener, where, later)
    except (OutOfTimeError, KeyboardInterrupt):  # what the trials chose so far is known to the report
        decide(finished(list(jobs.values()), checksums))
        renew(out, study())
        raise
    if tuned:
        decide(results)
        renew(out, study())
    if rest := [one for one in finals() if one not in results]:
        run_jobs(rest, checksums, listener, where)
    found = study()
    renew(out, found)
    return found


def jobs_of_comparison(
    recipe: Recipe, methods: Sequence[str], seeds: int, out: Path, where: Where, overwrite: bool = False
) -> dict[str, list[Job]]:
    """The jobs of `compare` by method, in the order in which they run.

    A tuned method has the setting that the trials in `out` choose; its first setting, if some of them are missing.
    """
    recipe = on_this_machine(recipe)
    methods = expanded(methods)
    checksums, metrics = data_for(recipe).checksums, find_task(recipe.task).metrics
    trials, tuning = _trials(recipe, methods), recipe.tuning
    epochs = seeds * sum(method.training(recipe.training).epochs for method in read_methods(methods))
    where = with_workers(where, recipe, seeds * len(methods), epochs)
    tried = {
        text: {trial: _job(recipe, TUNING, trial, tuning.seed, out, where, (), overwrite) for trial in each}
        for text, each in trials.items()
        if len(each) > 1
    }
    results = finished([job for jobs in tried.values() for job in jobs.values()], checksums)
    chosen = {text: _chosen(metrics, jobs, results) for text, jobs in tried.items()}
    final = {
        text: [
            _job(recipe, FINAL, chosen.get(text) or each[0], seed, out, where, (), overwrite)
            for seed in recipe.seed_numbers(seeds)
        ]
        for text, each in trials.items()
    }
    return {f"{text}, tuning": list(jobs.values()) for text, jobs in tried.items()} | final


def _trials(recipe: Recipe, methods: Sequence[str]) -> dict[str, list[str]]:
    """Method -> the settings that tuning tries; one setting without tuning."""
    tuning = recipe.tuning
    how = tuning.trials, tuning.seed, tuning.grids, tuning.points, tuning.draw
    return {text: candidates(text, *how) for text in methods}


def _job(
    recipe: Recipe,
    kind: str,
    method: str,
    seed: int,
    out: Path,
    where: Where,
    trackers: tuple[str, ...],
    overwrite: bool,
) -> Job:
    content, final = recipe_of(kind, recipe.to_dict()), kind == FINAL
    watched = trackers if final else ()
    return Job(content, method, seed, str(out), kind, final, watched, at_once=where.workers, overwrite=overwrite)


def check_alone(command: str) -> None:
    """Refuse to run under torchrun, where every process would start the whole study."""
    if processes() > 1:
        raise ArgumentError(
            f"{command} starts its runs itself: under torchrun or accelerate launch use train, one run at a time, "
            f"and then {command} with the same --out for what is missing"
        )


def _chosen(metrics: Metrics, trials: Mapping[str, Job], results: Mapping[Job, Result]) -> str | None:
    """The setting that the trials of a method choose; None while one of them has not ended."""
    if any(job not in results for job in trials.values()):
        return None
    return _best(metrics, {trial: results[job] for trial, job in trials.items()})


def _best(metrics: Metrics, results: dict[str, Result]) -> str:
    """The trial with the best scores on the validation part; of equal ones the first."""
    judged = {
        method: metrics.merit(result.validation) for method, result in results.items() if result.validation is not None
    }
    return max(judged, key=lambda method: judged[method]) if judged else next(iter(results))
