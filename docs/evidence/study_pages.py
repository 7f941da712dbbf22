"""Which page shows which study: its table, its figures, and what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import checks
import cifar_100
import findings
import tables
import translation
import wrong_labels
import wrong_labels_again
from marks import filled

HERE = Path(__file__).parent
DOCS = HERE.parent


@dataclass(frozen=True)
class Page:
    """A page with the table and the figures of a study. Its marks have the name `key`."""

    key: str
    path: Path
    #: results.csv, recipe.yaml and, if measured, costs.json.
    results: Path
    figures: Path
    baseline: str | None = None
    #: Heading -> column of results.csv, factor, digits.
    extra: dict[str, tuple[str, float, int]] = field(default_factory=dict)
    #: Other marks of the page -> what is written there.
    also: dict[str, Callable[[], str]] = field(default_factory=dict)


ECE = {"ECE, %": ("test_ece", 100.0, 1)}
FIRST = DOCS / "results" / "cifar10-20pct"
ATTACKS = {f"PGD {size}, %": (f"accuracy_linf_{size}", 100.0, 1) for size in ("0.5/255", "2/255", "8/255")}
SCREEN = HERE / "results" / "cifar10-20pct-screen"
ATTACKED = HERE / "results" / "cifar10-20pct-attack"
CONTROLS = HERE / "results" / "cifar10-20pct-controls"
CONFIRM = HERE / "results" / "cifar10-20pct-confirm"
EQUAL = HERE / "results" / "cifar10-20pct-equal"
WIDE = HERE / "results" / "cifar10-20pct-wide"
NOISE = HERE / "results" / "cifar10-20pct-noise"
NOISE_AGAIN = HERE / "results" / "cifar10-20pct-noise-again"
CIFAR_100 = HERE / "results" / "cifar100"
MULTI30K = HERE / "results" / "multi30k-en-de"
#: No comparisons of methods: they have pages of their own kinds.
ABLATIONS = HERE / "results" / "cifar10-ablations"
SEARCH = HERE / "results" / "cifar10-search"
NOISE_SEARCH = HERE / "results" / "cifar10-noise-search"
TRANSLATION_SEARCH = HERE / "results" / "multi30k-search"
#: What was published. A study of the protocol gets a line here, and marks in the page that tells of it.
PAGES = (
    Page("cifar10-20pct", FIRST / "README.md", FIRST, FIRST, extra=ECE | ATTACKS),
    Page(
        "cifar10-20pct-screen",
        HERE / "study-1.md",
        SCREEN,
        SCREEN,
        extra={"validation accuracy, %": ("validation_accuracy", 100.0, 2)} | ECE,
        also={"check": checks.study_1},
    ),
    Page(
        "cifar10-20pct-confirm",
        HERE / "study-1.md",
        CONFIRM,
        CONFIRM,
        extra=ECE | {"GPU seconds of a run": ("gpu_seconds", 1.0, 1)},
        also={"findings": findings.bullets, "attacks": findings.attacks},
    ),
    Page(
        "cifar10-20pct-controls",
        HERE / "study-1.md",
        CONTROLS,
        CONTROLS,
        extra=ECE | {"GPU seconds of a run": ("gpu_seconds", 1.0, 1)},
    ),
    Page(
        "cifar10-20pct-equal",
        HERE / "study-1.md",
        EQUAL,
        EQUAL,
        baseline="longer(lr=0.5,decay=1.0,times=1.55)",
        extra=ECE | {"GPU seconds of a run": ("gpu_seconds", 1.0, 1)},
    ),
    Page(
        "cifar10-20pct-wide",
        HERE / "study-1.md",
        WIDE,
        WIDE,
        baseline="r-drop(weight=3.0,p=0.1)",
        extra=ECE,
        also={"settings changed": findings.settings_changed},
    ),
    Page(
        "cifar10-20pct-noise",
        HERE / "wrong-labels.md",
        NOISE,
        NOISE,
        extra=ECE | {"NLL": ("test_nll", 1.0, 3), "GPU seconds of a run": ("gpu_seconds", 1.0, 1)},
        also={"wrong labels": wrong_labels.bullets},
    ),
    Page(
        "cifar10-20pct-noise-again",
        HERE / "wrong-labels.md",
        NOISE_AGAIN,
        NOISE_AGAIN,
        extra=ECE | {"ECE scaled, %": ("test_ece_scaled", 100.0, 1), "GPU seconds of a run": ("gpu_seconds", 1.0, 1)},
        also={"wrong labels again": wrong_labels_again.bullets, "heavier weights": wrong_labels_again.ranked},
    ),
    Page(
        "multi30k-en-de",
        HERE / "translation.md",
        MULTI30K,
        MULTI30K,
        extra={"tokenised BLEU": ("test_tokenised_bleu", 1.0, 2), "validation BLEU": ("validation_bleu", 1.0, 2)},
        also={
            "translation": translation.bullets,
            "translation search findings": translation.searched,
            "translation search": translation.ranking_of_search,
        },
    ),
    Page(
        "cifar100",
        HERE / "cifar-100.md",
        CIFAR_100,
        CIFAR_100,
        extra={"validation accuracy, %": ("validation_accuracy", 100.0, 2)} | ECE,
        also={"CIFAR-100": cifar_100.bullets},
    ),
    Page("cifar10-20pct-attack", HERE / "study-1.md", ATTACKED, ATTACKED, extra=ATTACKS),
)


def written() -> dict[Path, str]:
    """The tables and figures of all studies. Without steps that were measured alone, there is no figure of GPU time."""
    if missing := unlisted():
        raise SystemExit(f"{missing[0]}: expected an entry in PAGES of docs/evidence/study_pages.py")
    found: dict[Path, str] = {}
    for page in PAGES:
        study = tables.read(page.results, page.baseline)
        text = found.get(page.path) or page.path.read_text(encoding="utf-8")
        found[page.path] = filled(text, page.key, tables.table(study, page.extra))
        figures = {"forest": tables.forest(study), "gpu-seconds": tables.against_time(study)}
        found |= {page.figures / f"{page.key}-{name}.svg": drawn for name, drawn in figures.items() if drawn}
        for name, write in page.also.items():
            found[page.path] = filled(found[page.path], name, write())
    return found


def unlisted() -> list[Path]:
    """Folders of results that no page shows."""
    shown = {page.results for page in PAGES} | {ABLATIONS, SEARCH, NOISE_SEARCH, TRANSLATION_SEARCH}
    return [path.parent for path in sorted((HERE / "results").glob("*/results.csv")) if path.parent not in shown]
