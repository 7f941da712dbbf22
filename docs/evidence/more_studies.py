"""The studies that have no page of their own: what they ask, how far they are, and what they show.

A study of the queue is published by `benchmarks/evidence.py publish` alone: its part of the page is here already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import studies
import study_words
import tables
import translation
import verdicts
from other_claims import Judged, complete, not_measured
from wording import difference

PAGE = Path(__file__).parent / "more-studies.md"
CLASSES = {
    "validation accuracy, %": ("validation_accuracy", 100.0, 2),
    "ECE, %": ("test_ece", 100.0, 1),
    "ECE scaled, %": ("test_ece_scaled", 100.0, 1),
}
TEXT = {"perplexity": ("test_perplexity", 1.0, 2), "validation loss": ("validation_loss", 1.0, 4)}
BLEU = {"tokenised BLEU": ("test_tokenised_bleu", 1.0, 2), "validation BLEU": ("validation_bleu", 1.0, 2)}
SECONDS = {"GPU seconds of a run": ("gpu_seconds", 1.0, 1)}


@dataclass(frozen=True)
class Later:
    """A study: the name of its folder of results, and what is said of it before any number."""

    name: str
    title: str
    words: str
    #: As in `study_pages.Page`.
    extra: dict[str, tuple[str, float, int]]

    @property
    def folder(self) -> Path:
        """Its published results, which may not exist yet."""
        return studies.RESULTS / self.name

    @property
    def has_begun(self) -> bool:
        """Whether results with final runs were published."""
        return (self.folder / "results.csv").exists() and bool(tables.final_runs(self.folder))

    @property
    def link(self) -> str:
        """To its part of the page."""
        return f"[{self.title}](more-studies.md#{re.sub('[^a-z0-9]+', '-', self.title.lower()).strip('-')})"


#: The study that shows nothing of its own.
MORE_SEEDS = "cifar100-more"
SAME_MODEL = "The model and the settings of the methods are those of [study 1](study-1.md#confirm)."
STUDIES = (
    Later(
        "cifar10-20pct-tenth",
        "10 percent of CIFAR-10",
        f"5,000 training images in place of 9,000, 200 epochs, seeds 100 to 109. {SAME_MODEL} "
        "Claim [P10](claims.md#other-claims-of-the-paper) compares it with the next one.",
        CLASSES,
    ),
    Later(
        "cifar10-half",
        "50 percent of CIFAR-10",
        f"22,500 training images, 60 epochs, seeds 100 to 109. {SAME_MODEL}",
        CLASSES,
    ),
    Later(
        "transfer",
        "Transfer from CIFAR-100",
        "The model of [study 2](cifar-100.md), pretrained on CIFAR-100 without a method, is fine-tuned on 5,000 images "
        "of CIFAR-10. All seeds begin with the same weights, so intervals do not contain another pretraining.",
        CLASSES,
    ),
    Later(
        "tinyshakespeare",
        "tinyshakespeare by characters",
        "A GPT of 6 layers. The loss is in nats, and less is better. All methods tune the learning rate, the weight "
        "decay and dropout: the baseline is `none` with these three tuned.",
        TEXT,
    ),
    Later(
        "wikitext2",
        "WikiText-2 by words",
        "A GPT of 4 layers, with the methods of tinyshakespeare. The loss is in nats, and less is better.",
        TEXT,
    ),
    Later(
        "cifar10-20pct-long",
        "Longer training on 20 percent of CIFAR-10",
        "200 epochs in place of 100, seeds 300 to 304: a table [added after the screen](protocol.md"
        "#added-after-the-screen), for no headline claim.",
        CLASSES,
    ),
    Later(
        MORE_SEEDS,
        "CIFAR-100 with more seeds",
        "Five more seeds of some methods of [study 2](cifar-100.md). Only the [headline claims](claims.md"
        "#headline-claims) use them, together with the first five. Alone they show nothing of their own.",
        CLASSES,
    ),
    Later("cifar10-full", "CIFAR-10 in full", "The model of [study 2](cifar-100.md) on all images.", CLASSES),
    Later("multi30k-de-en", "Multi30k from German to English", "As [study 3](translation.md), the other way.", BLEU),
)
#: The studies of causal models (P21).
CAUSAL = ("tinyshakespeare", "wikitext2")


def written() -> dict[Path, str]:
    """The figures of all that have begun."""
    found: dict[Path, str] = {}
    for one in STUDIES:
        if one.has_begun:
            study = tables.read(one.folder)
            drawn = {"forest": tables.forest(study), "gpu-seconds": tables.against_time(study)}
            found |= {one.folder / f"{one.name}-{kind}.svg": text for kind, text in drawn.items() if text}
    return found


def parts() -> str:
    """All of them, one part for each."""
    return "\n\n".join(f"## {one.title}\n\n{one.words}\n\n{_shown(one)}" for one in STUDIES)


def _shown(one: Later) -> str:
    """The sentences, the table and the figures of a study."""
    if not one.has_begun:
        return f"State: {state(one)}."
    study = tables.read(one.folder)
    bullets = [study_words.progress(one.folder, study)]
    if one.name != MORE_SEEDS:
        bullets += [*study_words.to_baseline(one.folder, study), *_to_rivals(one, study)]
    figures = [
        f"![{words}](results/{one.name}/{one.name}-{kind}.svg)"
        for kind, words, draw in (
            ("forest", f"Differences to {study.methods[0].label} with their intervals", tables.forest),
            ("gpu-seconds", f"Test {study.primary.label} against GPU seconds", tables.against_time),
        )
        if draw(study)
    ]
    files = [f"[every run](results/{one.name}/results.csv)", f"[the recipe](results/{one.name}/recipe.yaml)"]
    if (one.folder / "costs.json").exists():
        files.append(f"[the time of a step](results/{one.name}/costs.json), measured alone")
    said = "\n".join(f"- {line}" for line in (*bullets, f"Files: {', '.join(files)}."))
    return "\n\n".join((said, tables.table(study, one.extra | SECONDS), *figures))


def _to_rivals(one: Later, study: tables.Study) -> list[str]:
    """Our methods to R-Drop, which may be a part of them, and to the baseline with more epochs, if the study has it."""
    lines = []
    for rival in filter(None, (_r_drop(study), _longer(study))):
        other = tables.read(one.folder, rival)
        ours = [label for label in study_words.told(other) if studies.is_ours(studies.Runs(label))]
        shown = "; ".join(study_words.with_seeds(other, label) for label in ours)
        if ours:
            lines.append(f"Our methods to `{rival}`, corrected for all comparisons with it: {shown}.")
    return lines


def _r_drop(study: tables.Study) -> str | None:
    """R-Drop with nothing of ours; None if the study does not have it."""
    labels = [each.label for each in study.methods if not study_words.is_control(each.label, study.methods[0].label)]
    return next((one for one in labels if set(studies.Runs(one).parts) - {"longer"} == {"r-drop"}), None)


def _longer(study: tables.Study) -> str | None:
    """The baseline with more epochs; None if the study does not have it."""
    base = study.methods[0].label
    return next((each.label for each in study.methods[1:] if study_words.is_longer(each.label, base)), None)


def state(one: Later) -> str:
    """How far it is."""
    has_file = (one.folder / "results.csv").exists()
    return "trials have begun" if has_file and not one.has_begun else study_words.state(one.folder)


def in_short(one: Later) -> str:
    """What other pages say of a study that has begun."""
    if one.name == MORE_SEEDS:
        return f"{one.link} ({state(one)}): only the [headline claims](claims.md#headline-claims) use them"
    study = tables.read(one.folder)
    base, so_far = study.methods[0].label, "" if complete(one.folder) else " so far"
    better, worse = (_with_differences(study, kind) for kind in ("better", "worse"))
    no_gain = f"no regulariser was shown to be better than `{base}`{so_far}"
    said = [f"better than `{base}`{so_far}: {better}" if better else no_gain]
    said += [f"worse{so_far}: {worse}"] if worse else []
    if better and (longer := _longer(study)) in study_words.told(study):
        said.append(f"the baseline with more epochs: {difference(study, longer, study.primary.brief_digits)}")
    less = "" if study.primary.higher_is_better else "; less is better"
    return f"{one.link} ({state(one)}{less}): {'; '.join(said)}"


def _with_differences(study: tables.Study, kind: str) -> str:
    """The regularisers of a kind with their differences to the baseline; nothing if there are none."""
    labels, digits = study_words.regularisers(study, kind), study.primary.brief_digits
    return study_words.listed([f"`{label}` ({difference(study, label, digits)})" for label in labels])


def over_longer() -> dict[str, str | None]:
    """Study -> by how much the preset is better than the baseline with more epochs; None: that was not shown.

    Studies that are not complete are left out, and those that do not have both.
    """
    found: dict[str, str | None] = {}
    for one in (one for one in STUDIES if one.name != MORE_SEEDS and complete(one.folder)):
        if (longer := _longer(tables.read(one.folder))) is None:
            continue
        study = tables.read(one.folder, longer)
        if studies.SEARCHED in (told := study_words.told(study)):
            is_better = told[studies.SEARCHED] == "better"
            shown = difference(study, studies.SEARCHED, study.primary.brief_digits)
            found[one.title] = shown if is_better else None
    return found


def overview() -> str:
    """What the overview says of all of them."""
    begun, others = ([one for one in STUDIES if one.has_begun is wanted] for wanted in (True, False))
    lines = [f"- {in_short(one)}." for one in begun]
    if others:
        names = study_words.listed([one.link for one in others])
        lines.append(f"- No runs of these were published, so nothing is known of them yet: {names}.")
    return "\n".join(lines)


def of(name: str) -> Later:
    """The study of that name."""
    (found,) = [one for one in STUDIES if one.name == name]
    return found


def states() -> dict[str, str]:
    """Name of a mark of the overview -> how far these studies are."""
    return {f"state of {one.name}": state(one) for one in STUDIES}


def causal_models() -> Judged:
    """P21: what the paper did not evaluate. There is nothing to reproduce, so what we found is reported."""
    if missing := [name for name in (studies.TRANSLATION.folder, *CAUSAL) if not complete(studies.RESULTS / name)]:
        return not_measured(missing)
    causal = ". ".join(in_short(of(name)) for name in CAUSAL)
    words = f"Cross-attention: {translation.in_short()} Causal models: {causal}"
    return Judged(
        verdicts.NEW, " ".join(words.split()), "[translation](translation.md), [more studies](more-studies.md)"
    )
