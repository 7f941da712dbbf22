"""Texts with labels, from files or generated."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ....errors import bad_argument
from ..draw_keys import key
from ..missing_files import how_to_name, missing
from ..text.generated_sentences import generated_labels
from ..text.line_files import TextFileError, read_lines
from ..text.part_files import PART_WORDS, files_of_parts
from .labelled_settings import LabelledSettings

#: Label and text.
Labelled = list[tuple[str, str]]


def read_labelled(settings: LabelledSettings) -> dict[str, Labelled]:
    """Part -> labels and texts. Labels that the training part does not have are an error."""
    if settings.name == "generated":
        counts = {part: max(1, settings.sentences // (1 if part == "train" else 4)) for part in PART_WORDS}
        parts = {part: generated_labels(count, key("labels", settings.seed, part)) for part, count in counts.items()}
    else:
        parts = _from_files(settings)
    if settings.validation is not None:
        order = _order(len(parts["train"]), settings, "validation")
        held = round(len(order) * settings.validation)
        whole = parts["train"]
        parts["validation"] = [whole[place] for place in sorted(order[:held])]
        parts["train"] = [whole[place] for place in sorted(order[held:])]
    if settings.train_fraction < 1.0:
        order = _order(len(parts["train"]), settings, "train fraction")
        kept = order[: max(1, round(len(order) * settings.train_fraction))]
        parts["train"] = [parts["train"][place] for place in sorted(kept)]
    for part, found in parts.items():
        if not found:
            raise bad_argument("data", f"texts in the {part} part", "none")
    _check_labels(parts)
    return {part: parts[part] for part in PART_WORDS}


def _from_files(settings: LabelledSettings) -> dict[str, Labelled]:
    if settings.root is None:
        raise missing("a folder with files of labels and texts", None, how_to_name("FOLDER"))
    root = Path(settings.root).expanduser()
    parts = [part for part in PART_WORDS if part != "validation" or settings.validation is None]
    return {part: _read(path) for part, path in files_of_parts(root, parts).items()}


def _read(path: Path) -> Labelled:
    found = []
    for number, line in enumerate(read_lines(path), start=1):
        label, tab, text = line.partition("\t")
        if not tab or not label.strip() or not text.strip():
            raise TextFileError(f"{path}, line {number}: expected a label, a tab and a text")
        found.append((label.strip(), text.strip()))
    return found


def _order(count: int, settings: LabelledSettings, purpose: str) -> list[int]:
    order: list[int] = np.random.default_rng(key(purpose, settings.seed)).permutation(count).tolist()
    return order


def _check_labels(parts: dict[str, Labelled]) -> None:
    known = {label for label, _ in parts["train"]}
    if len(known) < 2:
        raise bad_argument("data", "at least 2 labels in the training part", ", ".join(known))
    for part, found in parts.items():
        unknown = sorted({label for label, _ in found} - known)
        if unknown:
            raise bad_argument("data", f"labels of the training part in the {part} part", ", ".join(unknown[:5]))
