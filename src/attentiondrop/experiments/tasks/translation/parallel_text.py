"""Read the pairs of sentences that the settings name, in three parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....errors import ArgumentError, bad_argument
from ..draw_keys import key
from ..missing_files import how_to_name, missing
from ..optional_packages import imported
from ..text.aligned_files import Pairs, read_aligned
from ..text.line_files import find_file
from . import toy_sentences
from .translation_settings import FILES, TOY, WMT14, TranslationData

PARTS = ("train", "validation", "test")


def read_parts(settings: TranslationData) -> tuple[dict[str, Pairs], list[str]]:
    """Part -> pairs, and lines for people about what was left out."""
    notes: list[str] = []
    if settings.name == TOY:
        parts = toy_sentences.generate(settings.sentences, settings.seed)
    elif settings.name == WMT14 and settings.root is None:
        parts = _from_datasets(settings, notes)
    else:
        parts = _from_files(settings, notes)
    if settings.limit is not None:
        parts = {part: Pairs(*(side[: settings.limit] for side in pairs)) for part, pairs in parts.items()}
    if settings.lowercase:
        parts = {part: Pairs(*([text.lower() for text in side] for side in pairs)) for part, pairs in parts.items()}
    return parts, notes


def _from_files(settings: TranslationData, notes: list[str]) -> dict[str, Pairs]:
    if settings.root is None:
        raise missing("the folder of the files", None, how_to_name("FOLDER"))
    root, own = settings.root, (settings.train, settings.validation, settings.test)
    stems = {part: given or usual for part, given, usual in zip(PARTS, own, FILES[settings.name], strict=True)}
    found = {
        part: read_aligned(*(find_file(root, f"{stem}.{language}") for language in (settings.source, settings.target)))
        for part, stem in stems.items()
        if stem is not None
    }
    if without_file := [part for part in PARTS if part not in found]:
        _hold_out(found, without_file, settings, notes)
    return {part: found[part] for part in PARTS}


def _hold_out(found: dict[str, Pairs], parts: list[str], settings: TranslationData, notes: list[str]) -> None:
    """Take pairs out of the training part, at random, for the parts that have no file.

    A pair that is there twice is kept once: otherwise, a model could be tested on pairs that it was trained on.
    """
    distinct = dict.fromkeys(zip(*found["train"], strict=True))
    if repeated := len(found["train"].source) - len(distinct):
        notes.append(f"{settings.train}: {repeated} pairs left out before others are held out, since they are repeated")
    train, count = Pairs(*map(list, zip(*distinct, strict=True))), settings.held_out
    left = len(train.source) - count * len(parts)
    if left < 1:
        expected = f"fewer than the {len(train.source)} distinct training pairs for {' and '.join(parts)} together"
        raise bad_argument("data.held_out", expected, count)
    order = np.random.default_rng(key("held out", settings.seed)).permutation(len(train.source))
    places = np.split(order, [count * number for number in range(1, len(parts) + 1)])
    # The parts keep the order of the file.
    for part, chosen in zip([*parts, "train"], places, strict=True):
        chosen = np.sort(chosen)
        found[part] = Pairs(*([side[place] for place in chosen] for side in train))


def _from_datasets(settings: TranslationData, notes: list[str]) -> dict[str, Pairs]:
    """WMT14 by the datasets library. Pairs with an empty side, which its training part has, are left out."""
    if not settings.download:
        raise ArgumentError(
            "data.root: expected the folder of the files, or data.download=true to read them with the datasets library"
        )
    datasets: Any = imported("datasets")
    languages = {settings.source, settings.target}
    other = next((language for language in sorted(languages) if language != "en"), "")
    if languages != {"en", other}:
        raise bad_argument("data.source", f"en or a translation into en, as {WMT14} has", settings.source)
    rows = datasets.load_dataset("wmt14", f"{other}-en")
    found = {}
    for part in PARTS:
        sides = ([], [])  # type: tuple[list[str], list[str]]
        empty = 0
        for row in rows[part]:
            texts = [row["translation"][language].strip() for language in (settings.source, settings.target)]
            if all(texts):
                for side, text in zip(sides, texts, strict=True):
                    side.append(text)
            else:
                empty += 1
        if empty:
            notes.append(f"{WMT14}: {empty} pairs of the {part} part left out, since one of their sides is empty")
        found[part] = Pairs(*sides)
    return found
