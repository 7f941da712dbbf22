"""The tables of docs/theory.md, and the numbers in its sentences: the results of benchmarks/theory_on_digits.py.

`make evidence` writes them (docs/evidence/write.py), and a test fails if the page differs.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from result_files import csv_rows
from scipy import stats

from attentiondrop.parsing import split_terms
from attentiondrop.theory.rounding import fixed_above

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
NAME = "theory-digits-aarch64-cpu-torch2.15"
#: The methods of the demo, as their runs are called.
DEMO = ("none", "dropout", "dropconnect", "r-drop", "hard", "blur", "blur+consistency")
HARD, BLUR = "hard(p=0.1,k=5)", "blur(sigma_max=0.5)"
#: Checkpoint -> heading.
CHECKPOINTS = {"before": "before training", "best": "best epoch", "last": "last epoch"}

Rows = list[dict[str, str]]


def rows(table: str) -> Rows:
    """The rows of a result file."""
    return csv_rows(RESULTS / f"{NAME}-{table}.csv")


def _half(values: list[float]) -> float:
    """Half of the 95 % t interval of their mean."""
    return float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5


def _markdown(headings: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *lines))


# --- certificates ----------------------------------------------------------------------------------------------------


def certified() -> dict[str, dict[str, dict[str, str]]]:
    """Method -> name of a certificate -> its row, in the order of the demo."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows("certificates"):
        found.setdefault(row["method"], {})[row["name"]] = row
    kinds = {method: "+".join(term.partition("(")[0] for term in split_terms(method)) for method in found}
    return {method: found[method] for method in sorted(found, key=lambda method: DEMO.index(kinds[method]))}


def certificates() -> str:
    """All bounds, in per cent."""
    headings = ["", "test error", "`eval()` at most", "`train()` at most (measured)", "1.", "2.", "3."]
    headings += ["posterior at most (measured)", "posterior mean at most (measured)"]
    lines = []
    for method, found in certified().items():
        posterior, held_out = found["posterior"], found["posterior, held-out"]
        stochastic, mean = found["stochastic"], found["posterior mean, through disagreement"]
        lines.append(
            [
                f"`{method}`",
                _percent(stochastic["test_error"]),
                _bound(found["deterministic"]),
                f"{_bound(stochastic)} ({_percent(stochastic['estimate'])})",
                _bound(found["deterministic, through disagreement"]),
                _bound(found["majority vote, through views"]),
                _bound(found["softmax, through the consistency KL"]),
                f"{_bound(posterior)} ({_percent(held_out['estimate'])})",
                f"{_bound(mean)} ({_percent(mean['mean_error'])})",
            ]
        )
    return _markdown(headings, lines)


def bounds_in_a_sentence() -> str:
    """The smallest and the largest bounds of the plain and of the perturbed model."""
    spans = []
    for name in ("deterministic", "stochastic"):
        values = sorted((found[name] for found in certified().values()), key=lambda row: float(row["value"]))
        spans.append(f"{_bound(values[0])} to {_bound(values[-1])} %")
    return f"on the digits, errors are bounded by {spans[0]} for the plain model, by {spans[1]} for the perturbed model"


def posteriors() -> str:
    """How far the posteriors moved, and what that changed."""
    moved = {method: float(found["posterior"]["kl"]) for method, found in certified().items()}
    changed = {
        method: 100 * (float(found["posterior"]["value"]) - float(found["posterior"]["prior_value"]))
        for method, found in certified().items()
    }
    far = max(moved, key=lambda method: moved[method])
    near = [value for method, value in moved.items() if method != far]
    others = max(abs(value) for method, value in changed.items() if method != far)
    worse = "worse" if changed[far] > 0 else "better"
    return (
        f"The posterior moved {min(near):.1f} to {max(near):.1f} nats from its prior ({moved[far]:.1f} for `{far}`). "
        f"Its bound differs from the bound of the prior by at most {others:.1f} points ({abs(changed[far]):.1f} points "
        f"{worse} for `{far}`)."
    )


def _percent(value: str) -> str:
    return f"{100 * float(value):.1f}"


def _bound(row: dict[str, str]) -> str:
    """A bound is rounded up."""
    return fixed_above(float(row["value"]), 1, factor=100)


# --- gradient variance -----------------------------------------------------------------------------------------------


def ratios(method: str, checkpoint: str) -> list[float]:
    """Var[g_AD] / Var[g_base] of each seed."""
    own = [row for row in rows("variance") if row["method"] == method and row["checkpoint"] == checkpoint]
    return [float(row["perturbed"]) / float(row["base"]) for row in own]


def variance() -> str:
    """Geometric means over seeds, with intervals."""
    lines = [[f"`{method}`", *(ratio_in_words(method, one) for one in CHECKPOINTS)] for method in (HARD, BLUR)]
    return _markdown(["", *CHECKPOINTS.values()], lines)


def ratio_in_words(method: str, checkpoint: str) -> str:
    """The geometric mean of the ratios over seeds, and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios(method, checkpoint)]
    middle, half = statistics.fmean(logs), _half(logs)
    mean, low, high = (math.exp(value) for value in (middle, middle - half, middle + half))
    digits = 1 if mean >= 3 else 2
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def below_one() -> str:
    """How many ratios are below 1, what the covariance is, and how much of the variance comes from draws."""
    measured = rows("variance")
    below = [row for row in measured if float(row["perturbed"]) < float(row["base"])]
    lowest = min((float(row["perturbed"]) / float(row["base"]) for row in below), default=1.0)
    least = f" (the lowest by {100 * (1 - lowest):.1f} %)" if below else ""
    shares = {(method, late): _shares(method, late) for method in (HARD, BLUR) for late in (False, True)}
    return (
        f"{len(below)} of {len(measured)} measurements were below 1{least}. Cov / Var[dg] was "
        f"{_span(shares[HARD, False])} for masking before training, and {_span(shares[HARD, True])} after it (blur: "
        f"{_span(shares[BLUR, False])} and {_span(shares[BLUR, True])}). In trained models, the draws alone make up "
        f"{_span(_draws(HARD))} of the variance under masking, and {_span(_draws(BLUR))} under blur."
    )


def _shares(method: str, is_trained: bool) -> list[float]:
    own = [row for row in rows("variance") if row["method"] == method and (row["checkpoint"] != "before") is is_trained]
    return [float(row["covariance"]) / float(row["difference"]) for row in own]


def _draws(method: str) -> list[float]:
    own = [row for row in rows("variance") if row["method"] == method and row["checkpoint"] != "before"]
    return [float(row["from_draws"]) / float(row["perturbed"]) for row in own]


def _span(found: list[float]) -> str:
    return f"{min(found):.2f} to {max(found):.2f}"


def probes() -> str:
    """The variance while the models are trained, mean over seeds."""
    measured = rows("probes")
    epochs = sorted({int(row["epoch"]) for row in measured})
    lines = []
    for method in ("none", HARD, BLUR):
        own = [row for row in measured if row["method"] == method]
        means = [statistics.fmean(float(row["variance"]) for row in own if int(row["epoch"]) == one) for one in epochs]
        accuracy = 100 * statistics.fmean(float(row["test_accuracy"]) for row in own)
        lines.append([f"`{method}`", *(f"{mean:.2f}" for mean in means), f"{accuracy:.1f} %"])
    return _markdown(["epoch", *map(str, epochs), "test accuracy"], lines)


# --- entropy ---------------------------------------------------------------------------------------------------------


def changes() -> dict[str, tuple[float, float]]:
    """Spec -> mean change of the entropy over seeds, and half of its 95 % interval."""
    found = {}
    for spec, own in _by_spec().items():
        apart = [float(row["after"]) - float(row["before"]) for row in own]
        found[spec] = statistics.fmean(apart), _half(apart)
    return found


def change_in_words(spec: str) -> str:
    """`+0.007 ± 0.003`."""
    mean, half = changes()[spec]
    return f"{mean:+.3f} ± {half:.3f}"


def entropy() -> str:
    """Before and after, for every spec."""
    lines = []
    for spec, own in _by_spec().items():
        before, after = (statistics.fmean(float(row[name]) for row in own) for name in ("before", "after"))
        falling, heads = (sum(int(row[name]) for row in own) for name in ("falling", "heads"))
        cells = [f"`{spec}`", f"{before:.3f}", f"{after:.3f}", change_in_words(spec), f"{falling} of {heads}"]
        lines.append(cells)
    return _markdown(["spec", "before", "after", "change, 95 % interval over seeds", "heads that fall"], lines)


def _by_spec() -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in rows("entropy"):
        found.setdefault(row["spec"], []).append(row)
    return found
