"""Which page shows which study: its table, its figures, and what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import checks
import cifar_100
import findings
import more_studies
import tables
import translation
import wrong_labels
import wrong_labels_again
from marks import filled

HERE = Path(__file__).parent
RESULTS = HERE / "results"
STUDY_1 = HERE / "study-1.md"


@dataclass(frozen=True)
class Page:
    """A page with the table and the figures of a study."""

    path: Path
    #: results.csv, recipe.yaml and, if measured, costs.json. Its figures are written there, too.
    results: Path
    baseline: str | None = None
    #: Heading -> column of results.csv, factor, digits.
    extra: dict[str, tuple[str, float, int]] = field(default_factory=dict)
    #: Other marks of the page -> what is written there.
    also: dict[str, Callable[[], str]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name of its marks and of its figures."""
        return self.results.name


ECE = {"ECE, %": ("test_ece", 100.0, 1)}
SECONDS = more_studies.SECONDS
VALIDATION = {"validation accuracy, %": ("validation_accuracy", 100.0, 2)}
FIRST = HERE.parent / "results" / "cifar10-20pct"
ATTACKS = {f"PGD {size}, %": (f"accuracy_linf_{size}", 100.0, 1) for size in ("0.5/255", "2/255", "8/255")}
#: No comparisons of methods: they have pages of their own kinds.
ABLATIONS = RESULTS / "cifar10-ablations"
SEARCH = RESULTS / "cifar10-search"
NOISE_SEARCH = RESULTS / "cifar10-noise-search"
TRANSLATION_SEARCH = RESULTS / "multi30k-search"
#: What was published. A study of the protocol gets a line here, and marks in the page that tells of it.
PAGES = (
    Page(FIRST / "README.md", FIRST, extra=ECE | ATTACKS),
    Page(
        STUDY_1,
        RESULTS / "cifar10-20pct-screen",
        extra=VALIDATION | ECE,
        also={"check": checks.study_1},
    ),
    Page(
        STUDY_1,
        RESULTS / "cifar10-20pct-confirm",
        extra=ECE | SECONDS,
        also={"findings": findings.bullets, "attacks": findings.attacks},
    ),
    Page(
        STUDY_1,
        RESULTS / "cifar10-20pct-controls",
        extra=ECE | SECONDS,
    ),
    Page(
        STUDY_1,
        RESULTS / "cifar10-20pct-equal",
        baseline="longer(lr=0.5,decay=1.0,times=1.55)",
        extra=ECE | SECONDS,
    ),
    Page(
        STUDY_1,
        RESULTS / "cifar10-20pct-wide",
        baseline="r-drop(weight=3.0,p=0.1)",
        extra=ECE,
        also={"settings changed": findings.settings_changed},
    ),
    Page(
        HERE / "wrong-labels.md",
        RESULTS / "cifar10-20pct-noise",
        extra=ECE | {"NLL": ("test_nll", 1.0, 3)} | SECONDS,
        also={"wrong labels": wrong_labels.bullets},
    ),
    Page(
        HERE / "wrong-labels.md",
        RESULTS / "cifar10-20pct-noise-again",
        extra=ECE | {"ECE scaled, %": ("test_ece_scaled", 100.0, 1)} | SECONDS,
        also={"wrong labels again": wrong_labels_again.bullets, "heavier weights": wrong_labels_again.ranked},
    ),
    Page(
        HERE / "translation.md",
        RESULTS / "multi30k-en-de",
        extra=more_studies.BLEU | SECONDS,
        also={
            "translation": translation.bullets,
            "translation times": translation.times,
            "translation search findings": translation.searched,
            "translation search": translation.ranking_of_search,
        },
    ),
    Page(
        HERE / "cifar-100.md",
        RESULTS / "cifar100",
        extra=VALIDATION | ECE | SECONDS,
        also={"CIFAR-100": cifar_100.bullets, "CIFAR-100 times": cifar_100.times},
    ),
    Page(STUDY_1, RESULTS / "cifar10-20pct-attack", extra=ATTACKS),
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
        found |= {page.results / f"{page.key}-{name}.svg": drawn for name, drawn in figures.items() if drawn}
        for name, write in page.also.items():
            found[page.path] = filled(found[page.path], name, write())
    more = more_studies.PAGE
    found[more] = filled(more.read_text(encoding="utf-8"), "more studies", more_studies.parts())
    return found | more_studies.written()


def unlisted() -> list[Path]:
    """Folders of results that no page shows."""
    shown = {page.results for page in PAGES} | {ABLATIONS, SEARCH, NOISE_SEARCH, TRANSLATION_SEARCH}
    shown |= {one.folder for one in more_studies.STUDIES}
    return [path.parent for path in sorted(RESULTS.glob("*/results.csv")) if path.parent not in shown]
