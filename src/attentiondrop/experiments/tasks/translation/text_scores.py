"""Scores of translations against references: BLEU and chrF by sacreBLEU, and BLEU on lower-cased tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ....errors import ArgumentError
from ..optional_packages import imported


class TextScores(NamedTuple):
    """Scores in [0, 100], and how they were computed."""

    bleu: float
    chrf: float
    tokenised_bleu: float
    #: Name of the score -> sacreBLEU's signature.
    signatures: dict[str, str]


def score_texts(
    translations: Sequence[str], references: Sequence[str], language: str, lowercase: bool = False
) -> TextScores:
    """Score translations, one reference each.

    `bleu` and `chrf` are what sacreBLEU's command line gives for the same texts; with `lowercase` they ignore case, as
    its option `--lowercase`. Chinese has no spaces: there, `bleu` is that of its option `--tokenize zh`.
    `tokenised_bleu` is BLEU on the tokens of Moses' tokeniser for `language`, in lower case: what many papers report.

    >>> score_texts(["The cat sat here ."], ["The cat sat here ."], "en").bleu > 99
    True
    """
    if len(translations) != len(references):
        raise ArgumentError(
            f"translations: expected one for each reference, received {len(translations)} for {len(references)}"
        )
    metrics = imported("sacrebleu.metrics")
    chinese = re.split("[-_]", language)[0].lower() == "zh"
    bleu = metrics.BLEU(lowercase=lowercase, tokenize="zh" if chinese else None)
    chrf = metrics.CHRF(lowercase=lowercase)
    # Tokens are what they are: "force" turns a warning off about texts that look tokenised.
    tokenised = metrics.BLEU(tokenize="none", force=True)
    split = _tokeniser(language)
    pairs = {
        "bleu": (bleu, translations, references),
        "chrf": (chrf, translations, references),
        "tokenised_bleu": (tokenised, [split(text) for text in translations], [split(text) for text in references]),
    }
    found = {
        name: metric.corpus_score(list(ours), [list(theirs)]).score for name, (metric, ours, theirs) in pairs.items()
    }
    signatures = {name: str(metric.get_signature()) for name, (metric, _, _) in pairs.items()}
    signatures["tokenised_bleu"] += f"; both sides lower-cased, then tokenised by sacremoses for {language}"
    return TextScores(**found, signatures=signatures)


def _tokeniser(language: str) -> Any:
    moses = imported("sacremoses").MosesTokenizer(lang=language)
    return lambda text: moses.tokenize(text.lower(), return_str=True, escape=False)
