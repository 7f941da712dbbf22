"""BLEU and chrF are what sacreBLEU's command line prints."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.tasks.translation.text_scores import score_texts

pytest.importorskip("sacrebleu")
pytest.importorskip("sacremoses")

REFERENCES = [
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    'Zwei Jungen essen "ihr" Menü im Außenbereich (5,3 %).',
    "Die Frau läuft über grünes Gras vor einem weißen Zaun.",
]
TRANSLATIONS = [
    "Ein Mann mit einem orangen Hut starrt etwas an.",
    'zwei Jungen essen "ihr" Menü draußen (5,3 %).',
    "Die Frau läuft über das grüne Gras vor einem weißen Zaun.",
]


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_numbers_of_the_command_line(tmp_path, lowercase: bool) -> None:
    (tmp_path / "references").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    (tmp_path / "translations").write_text("\n".join(TRANSLATIONS) + "\n", encoding="utf-8")
    call = [sys.executable, "-m", "sacrebleu", "references", "-i", "translations", "-m", "bleu", "chrf", "-w", "10"]
    call += ["--lowercase", "--chrf-lowercase"] if lowercase else []
    printed = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    bleu, chrf = json.loads(printed)
    found = score_texts(TRANSLATIONS, REFERENCES, "de", lowercase)
    assert found.bleu == pytest.approx(bleu["score"], abs=1e-9) and 20 < found.bleu < 90
    assert found.chrf == pytest.approx(chrf["score"], abs=1e-9)
    assert found.signatures["bleu"] == bleu["signature"] and found.signatures["chrf"] == chrf["signature"]
    assert f"case:{'lc' if lowercase else 'mixed'}" in bleu["signature"]


@pytest.mark.parametrize("language", ["zh", "zh-CN"])
def test_chinese_has_no_spaces_between_words(tmp_path, language: str) -> None:
    """By default, sacreBLEU takes a sentence without spaces for one word: the score would be 0."""
    texts = ["我们今天去公园散步。", "他在北京工作了三年。"], ["我们今天去公园玩。", "他在北京工作三年了。"]
    for name, lines in zip(("translations", "references"), texts, strict=True):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    call = [sys.executable, "-m", "sacrebleu", "references", "-i", "translations", "-l", "en-zh", "-w", "10"]
    printed = json.loads(subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    found = score_texts(*texts, language)
    assert found.bleu == pytest.approx(printed["score"], abs=1e-9) and found.bleu > 50
    assert found.signatures["bleu"] == printed["signature"].replace("lang:en-zh|", "")


def test_tokenised_bleu_is_on_moses_tokens_in_lower_case(tmp_path) -> None:
    """Tokenised by Moses' own command, then by the command line of sacreBLEU without tokenisation."""
    for name, texts in (("references", REFERENCES), ("translations", TRANSLATIONS)):
        lower = "\n".join(texts).lower() + "\n"
        call = [sys.executable, "-m", "sacremoses", "-l", "de", "tokenize", "-x"]
        tokens = subprocess.run(call, input=lower, capture_output=True, text=True, check=True).stdout
        (tmp_path / name).write_text(tokens, encoding="utf-8")
    call = [sys.executable, "-m", "sacrebleu", "references", "-i", "translations", "--tokenize", "none", "-w", "10"]
    printed = subprocess.run([*call, "--force"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    found = score_texts(TRANSLATIONS, REFERENCES, "de")
    assert found.tokenised_bleu == pytest.approx(json.loads(printed)["score"], abs=1e-9)
    assert found.tokenised_bleu != found.bleu
    assert found.signatures["tokenised_bleu"].endswith("lower-cased, then tokenised by sacremoses for de")


def test_tokens_are_those_of_the_language() -> None:
    texts = ["l' homme dort ici ."], ["l'homme dort ici ."]
    assert len({score_texts(*texts, language).tokenised_bleu for language in ("de", "en", "fr")}) == 3


def test_as_many_translations_as_references() -> None:
    with pytest.raises(ArgumentError, match="translations: expected one for each reference, received 2 for 3"):
        score_texts(TRANSLATIONS[:2], REFERENCES, "de")
