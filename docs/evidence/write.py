"""Writes every table and figure of docs/evidence, those of docs/speed.md and docs/theory.md, and findings elsewhere.

All of it comes from committed result files. With --check, it fails if a page differs from them.

python docs/evidence/write.py [--check]
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from marks import filled

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

HERE = Path(__file__).parent
DOCS = HERE.parent


def protocol() -> dict[Path, str]:
    """The page of the protocol."""
    import checks
    import plan

    path = HERE / "protocol.md"
    page = filled(path.read_text(encoding="utf-8"), "budget", plan.budget_table())
    page = filled(page, "check of CIFAR-100", checks.cifar_100())
    return {path: filled(page, "power", plan.power_table())}


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


def pages() -> dict[Path, str]:
    """The tables and figures of all studies."""
    import checks
    import study_pages

    found = study_pages.written()
    page = filled(found[study_pages.STUDY_1], "screen state", checks.screened(), between="")
    return found | {study_pages.STUDY_1: page}


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
    """The page of what we found, and the list of pages."""
    import cifar_100
    import more_studies
    import vision_preset

    path = HERE / "README.md"
    page = filled(path.read_text(encoding="utf-8"), "vision preset", vision_preset.table())
    page = filled(page, "CIFAR-100 in short", cifar_100.in_short(with_worse=True), between="")
    page = filled(page, "CIFAR-100 state", cifar_100.state(), between="")
    page = filled(page, "more studies in short", more_studies.overview())
    for name, words in more_studies.states().items():
        page = filled(page, name, words, between="")
    index = HERE / "index.md"
    listed = filled(index.read_text(encoding="utf-8"), "CIFAR-100 state", cifar_100.state(), between="")
    return {path: page, index: listed}


def judged() -> dict[Path, str]:
    """The page of claims."""
    import cifar_100
    import claims
    import comparisons
    import findings

    path = HERE / "claims.md"
    page = filled(path.read_text(encoding="utf-8"), "summary", claims.summary())
    in_h3 = f"In H3, R-Drop had tried weights up to 1.0 only. {findings.all_settings()}"
    beside = "\n\n".join((claims.beside_scarce(), in_h3, f"{claims.beside_translation()}\n{cifar_100.beside()}"))
    page = filled(page, "headlines", f"{claims.headline_table()}\n\n{beside}")
    page = filled(page, "paper", f"{comparisons.table()}\n\n{comparisons.remark()}")
    page = filled(page, "others", claims.others_table())
    page = filled(page, "convergence", claims.convergence_table())
    return {path: filled(page, "training-loss", claims.training_loss_table())}


def written() -> dict[Path, str]:
    """Every file that is written, with its content."""
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
