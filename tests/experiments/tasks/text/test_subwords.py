"""Subwords: without loss, the same in every process, and a clear error without the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.tasks import optional_packages
from attentiondrop.experiments.tasks.text.subwords import BEGIN, END, PAD, SMALLEST, Subwords, train_subwords

pytest.importorskip("tokenizers")

TEXTS = ["ein Mann mit einem Hut", "a man with a hat", "zwei Männer, ein Hund!", "two men, one dog!"] * 5


@pytest.mark.parametrize("sentences", [True, False])
def test_every_text_comes_back(sentences: bool) -> None:
    subwords = train_subwords(TEXTS, 300, sentences=sentences)
    odd = ["Größe 你好 <s> \u2028 tab\there", "two  spaces", "👍🏽"]
    assert subwords.decode(subwords.encode([*TEXTS, *odd])) == [*TEXTS, *odd]
    around = ["  two \n", "\n"]
    assert subwords.decode(subwords.encode(around)) == (["two", ""] if sentences else around)
    assert max(map(max, subwords.encode(TEXTS))) < len(subwords) <= 300
    # The special subwords are not text, and text does not become one.
    assert not {PAD, BEGIN, END} & {number for text in subwords.encode(odd) for number in text}
    assert subwords.decode([[BEGIN, *subwords.encode(["a man"])[0], END, PAD]]) == ["a man"]
    assert subwords.texts([BEGIN, *subwords.encode(["man"])[0]])[0] == "<s>"


def test_the_same_text_gives_the_same_subwords_in_another_process() -> None:
    code = f"""
from attentiondrop.experiments.tasks.text.subwords import train_subwords
print(train_subwords({TEXTS!r}, 300).checksum)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    subwords = train_subwords(TEXTS, 300)
    assert found == subwords.checksum
    assert Subwords.from_json(subwords.to_json()).encode(TEXTS) == subwords.encode(TEXTS)
    assert train_subwords(TEXTS, 290).checksum != found


def test_too_few_subwords() -> None:
    with pytest.raises(ArgumentError, match=f"vocabulary: expected at least {SMALLEST} subwords"):
        train_subwords(TEXTS, 100)


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(optional_packages.MissingPackageError, match=r'tokenizers; .* "attentiondrop\[sequences\]"'):
        train_subwords(TEXTS, 300)
