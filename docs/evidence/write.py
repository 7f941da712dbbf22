"""Writes every table and figure of docs/evidence, those of docs/speed.md and docs/theory.md, and findings elsewhere.

All of it comes from committed result files. With --check, it fails if a page differs from them.

python docs/evidence/write.py [--check]
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

HERE = Path(__file__).parent
DOCS = HERE.parent


def filled(page: str, name: str, content: str, between: str = "\n\n") -> str:
    """The page with `content` between the marks of that name. `between`: what separates it from them."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"expected the marks {begin} and {end} once")
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}{between}{content}{between}{end}", page)


def protocol() -> dict[Path, str]:
    """The page of the protocol."""
    import checks
    import plan

    path = HERE / "protocol.md"
    page = filled(path.read_text(encoding="utf-8"), "budget", plan.budget_table())
    page = filled(page, "check of CIFAR-100", checks.cifar_100())
    return {path: filled(page, "power", plan.power_table())}


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


def baseline_check() -> str:
    """What the checks of study 1's baseline reached."""
    import checks

    return checks.study_1()


def bullets() -> str:
    """The findings of study 1."""
    import findings

    return findings.bullets()


def with_wrong_labels() -> str:
    """The findings with wrong labels."""
    import wrong_labels

    return wrong_labels.bullets()


def wrong_labels_again() -> str:
    """What became of H8."""
    import wrong_labels_again

    return wrong_labels_again.bullets()


def heavier_weights() -> str:
    """The search for a weight of R-Drop with wrong labels."""
    import wrong_labels_again

    return wrong_labels_again.ranked()


def translated() -> str:
    """What Multi30k shows so far."""
    import translation

    return translation.bullets()


def translation_searched() -> str:
    """What the search of Multi30k found."""
    import translation

    return translation.searched()


def translation_ranking() -> str:
    """All combinations of that search."""
    import translation

    found = translation.ranking()
    return f"{found.state()}\n\n{found.table()}"


def settings_changed() -> str:
    """What six settings in place of three changed."""
    import findings

    return findings.settings_changed()


def attacks() -> str:
    """The attacks of study 1."""
    import findings

    return findings.attacks()


def front_page() -> dict[Path, str]:
    """What the README says of the evidence and of speed."""
    import speed_tables
    import vision_preset

    path = DOCS.parent / "README.md"
    page = filled(path.read_text(encoding="utf-8"), "findings", vision_preset.front_page(), between="\n")
    page = filled(page, "speed", speed_tables.in_a_sentence(), between="")
    return {path: filled(page, "longer rows", speed_tables.longer_in_a_sentence(), between="")}


#: Pages that say in short what study 1 found.
TOLD = (DOCS / "faq.md", DOCS / "start" / "index.md", DOCS / "experiments.md")


def told() -> dict[Path, str]:
    """The same few sentences on each of these pages."""
    import findings

    return {path: filled(path.read_text(encoding="utf-8"), "in short", findings.in_short()) for path in TOLD}


def speed() -> dict[Path, str]:
    """The page about speed."""
    import speed_tables

    path = DOCS / "speed.md"
    page = path.read_text(encoding="utf-8")
    tables_of_the_page = {
        "training": speed_tables.training,
        "small models": speed_tables.small_models,
        "vit": speed_tables.vit,
        "longer rows": speed_tables.longer_rows,
    }
    for name, table in tables_of_the_page.items():
        page = filled(page, name, table())
    return {path: page}


def measured() -> dict[Path, str]:
    """The pages about Keras, long sequences and missed goals."""
    import page_tables

    found = {}
    for name, mark, table in (
        ("keras.md", "keras steps", page_tables.keras),
        ("long-sequences.md", "long sequences", page_tables.long_sequences),
        ("speed-goals.md", "instructions", page_tables.instructions),
    ):
        path = DOCS / name
        found[path] = filled(path.read_text(encoding="utf-8"), mark, table())
    for mark, numbers in page_tables.goals().items():
        found[path] = filled(found[path], mark, numbers, between="")
    return found


def theory() -> dict[Path, str]:
    """The page about theory."""
    import theory_tables

    path = DOCS / "theory.md"
    page = path.read_text(encoding="utf-8")
    for name in ("certificates", "variance", "probes", "entropy"):
        page = filled(page, name, getattr(theory_tables, name)())
    page = filled(page, "below one", theory_tables.below_one())
    page = filled(page, "bounds", theory_tables.bounds_in_a_sentence(), between="")
    return {path: filled(page, "posteriors", theory_tables.posteriors(), between="")}


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
        also={"check": baseline_check},
    ),
    Page(
        "cifar10-20pct-confirm",
        HERE / "study-1.md",
        CONFIRM,
        CONFIRM,
        extra=ECE | {"GPU seconds of a run": ("gpu_seconds", 1.0, 1)},
        also={"findings": bullets, "attacks": attacks},
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
        also={"settings changed": settings_changed},
    ),
    Page(
        "cifar10-20pct-noise",
        HERE / "wrong-labels.md",
        NOISE,
        NOISE,
        extra=ECE | {"NLL": ("test_nll", 1.0, 3), "GPU seconds of a run": ("gpu_seconds", 1.0, 1)},
        also={"wrong labels": with_wrong_labels},
    ),
    Page(
        "cifar10-20pct-noise-again",
        HERE / "wrong-labels.md",
        NOISE_AGAIN,
        NOISE_AGAIN,
        extra=ECE | {"ECE scaled, %": ("test_ece_scaled", 100.0, 1), "GPU seconds of a run": ("gpu_seconds", 1.0, 1)},
        also={"wrong labels again": wrong_labels_again, "heavier weights": heavier_weights},
    ),
    Page(
        "multi30k-en-de",
        HERE / "translation.md",
        MULTI30K,
        MULTI30K,
        extra={"tokenised BLEU": ("test_tokenised_bleu", 1.0, 2), "validation BLEU": ("validation_bleu", 1.0, 2)},
        also={
            "translation": translated,
            "translation search findings": translation_searched,
            "translation search": translation_ranking,
        },
    ),
    Page("cifar10-20pct-attack", HERE / "study-1.md", ATTACKED, ATTACKED, extra=ATTACKS),
)


def pages() -> dict[Path, str]:
    """The tables and figures of all studies. Without steps that were measured alone, there is no figure of GPU time."""
    import tables

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


def ablated() -> dict[Path, str]:
    """The page of the ablations."""
    import ablations

    path = HERE / "ablations.md"
    page = filled(path.read_text(encoding="utf-8"), "ablations state", ablations.state())
    page = filled(page, "ablations means", ablations.means())
    return {path: filled(page, "ablations", ablations.grid_tables())}


def searched() -> dict[Path, str]:
    """The page of the search."""
    import search

    path = HERE / "search.md"
    page = filled(path.read_text(encoding="utf-8"), "search findings", search.bullets())
    page = filled(page, "search state", search.ranking().state())
    return {path: filled(page, "search", search.ranking().table())}


def overview() -> dict[Path, str]:
    """The page of what we found."""
    import vision_preset

    path = HERE / "README.md"
    return {path: filled(path.read_text(encoding="utf-8"), "vision preset", vision_preset.table())}


def judged() -> dict[Path, str]:
    """The page of claims."""
    import claims
    import comparisons
    import findings

    path = HERE / "claims.md"
    page = filled(path.read_text(encoding="utf-8"), "summary", claims.summary())
    in_h3 = f"In H3, R-Drop had tried weights up to 1.0 only. {findings.all_settings()}"
    beside = "\n\n".join((claims.beside_scarce(), in_h3, claims.beside_translation()))
    page = filled(page, "headlines", f"{claims.headline_table()}\n\n{beside}")
    page = filled(page, "paper", f"{comparisons.table()}\n\n{comparisons.remark()}")
    page = filled(page, "others", claims.others_table())
    page = filled(page, "convergence", claims.convergence_table())
    return {path: filled(page, "training-loss", claims.training_loss_table())}


def unlisted() -> list[Path]:
    """Folders of results that no page shows."""
    shown = {page.results for page in PAGES} | {ABLATIONS, SEARCH, NOISE_SEARCH, TRANSLATION_SEARCH}
    return [path.parent for path in sorted((HERE / "results").glob("*/results.csv")) if path.parent not in shown]


def written() -> dict[Path, str]:
    """Every file that is written, with its content."""
    if missing := unlisted():
        raise SystemExit(f"{missing[0]}: expected an entry in PAGES of docs/evidence/write.py")
    return (
        protocol()
        | pages()
        | ablated()
        | searched()
        | overview()
        | judged()
        | front_page()
        | told()
        | speed()
        | measured()
        | theory()
    )


def main(arguments: list[str]) -> int:
    """Write what differs, or list it with --check."""
    warnings.simplefilter("ignore")  # rates above 0.5 are warned of
    every = written()
    stale = [path for path, text in every.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if arguments == ["--check"]:
        for path in stale:
            sys.stdout.write(f"{path}: differs from its result files; run make evidence\n")
        return 1 if stale else 0
    for path, text in every.items():
        if path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
