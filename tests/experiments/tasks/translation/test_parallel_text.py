"""Where sentences come from: folders with plain and gzipped files, held-out pairs, the datasets library."""

from __future__ import annotations

import gzip
import sys
import types
from pathlib import Path

import pytest

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.tasks.text.aligned_files import Pairs
from attentiondrop.experiments.tasks.text.line_files import TextFileError
from attentiondrop.experiments.tasks.translation import toy_sentences
from attentiondrop.experiments.tasks.translation.parallel_text import read_parts
from attentiondrop.experiments.tasks.translation.sentence_pairs import load_pairs
from attentiondrop.experiments.tasks.translation.translation_settings import TransformerSettings, TranslationData

pytest.importorskip("tokenizers")

#: Sentences that begin with a capital letter.
PARTS = {
    part: Pairs(*([text.capitalize() for text in side] for side in pairs))
    for part, pairs in toy_sentences.generate(60, seed=1).items()
}
MULTI30K = {"train": "train", "validation": "val", "test": "test_2016_flickr"}


def folder(path: Path, names: dict[str, str], zipped: bool = True) -> str:
    for part, name in names.items():
        for language, texts in zip(("en", "de"), PARTS[part], strict=True):
            content = "".join(f"{text}\n" for text in texts).encode()
            file = path / (f"{name}.{language}.gz" if zipped else f"{name}.{language}")
            file.write_bytes(gzip.compress(content) if zipped else content)
    return str(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_folder_of_published_files(tmp_path, zipped: bool) -> None:
    root = folder(tmp_path, MULTI30K, zipped)
    parts, notes = read_parts(TranslationData("multi30k", root))
    assert parts == PARTS and notes == []
    turned, _ = read_parts(TranslationData("multi30k", root, source="de", target="en"))
    assert turned["test"] == PARTS["test"][::-1]
    few, _ = read_parts(TranslationData("multi30k", root, limit=5, lowercase=True))
    assert few == {
        part: Pairs(*([text.lower() for text in side[:5]] for side in pairs)) for part, pairs in PARTS.items()
    }
    assert few["train"].source != PARTS["train"].source[:5]
    other, _ = read_parts(TranslationData("multi30k", root, test="val"))
    assert other["test"] == PARTS["validation"]


def test_any_aligned_files_with_held_out_pairs(tmp_path) -> None:
    root = folder(tmp_path, {"train": "Books.de-en"})
    settings = TranslationData("opus", root, train="Books.de-en", held_out=7)
    parts, _ = read_parts(settings)
    assert {part: len(pairs.source) for part, pairs in parts.items()} == {"train": 46, "validation": 7, "test": 7}
    pairs = [pair for part in parts.values() for pair in zip(*part, strict=True)]
    assert sorted(pairs) == sorted(zip(*PARTS["train"], strict=True))
    for part in parts.values():
        file = iter(zip(*PARTS["train"], strict=True))
        assert all(pair in file for pair in zip(*part, strict=True))  # in the order of the file
    assert read_parts(settings)[0] == parts
    assert read_parts(TranslationData("opus", root, train="Books.de-en", held_out=7, seed=1))[0] != parts
    with pytest.raises(
        ArgumentError, match=r"data.held_out: expected fewer than the 60 distinct training pairs for valid.*30"
    ):
        read_parts(TranslationData("opus", root, train="Books.de-en", held_out=30))
    folder(tmp_path, {"validation": "dev"})
    with_dev, _ = read_parts(TranslationData("opus", root, train="Books.de-en", validation="dev", held_out=5))
    assert with_dev["validation"] == PARTS["validation"] and len(with_dev["train"].source) == 55


def test_no_held_out_pair_is_also_trained_on(tmp_path) -> None:
    folder(tmp_path, {"train": "Books.de-en"})
    for language in ("en", "de"):
        file = tmp_path / f"Books.de-en.{language}.gz"
        file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) * 3))
    parts, notes = read_parts(TranslationData("opus", str(tmp_path), train="Books.de-en", held_out=7))
    pairs = [pair for part in parts.values() for pair in zip(*part, strict=True)]
    assert sorted(pairs) == sorted(zip(*PARTS["train"], strict=True))
    assert notes == ["Books.de-en: 120 pairs left out before others are held out, since they are repeated"]


def test_wmt14_from_a_folder_or_by_the_datasets_library(tmp_path, monkeypatch) -> None:
    names = {"train": "train", "validation": "newstest2013", "test": "newstest2014"}
    assert read_parts(TranslationData("wmt14", folder(tmp_path, names)))[0] == PARTS
    asked = []

    def load_dataset(*names: str):
        asked.append(names)
        rows = {
            part: [{"translation": {"en": s, names[1][:2]: t}} for s, t in zip(*pairs, strict=True)]
            for part, pairs in PARTS.items()
        }
        rows["train"].insert(3, {"translation": {"en": "alone", names[1][:2]: " "}})
        return rows

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    parts, notes = read_parts(TranslationData("wmt14", download=True))
    assert parts == PARTS and asked == [("wmt14", "de-en")]
    assert notes == ["wmt14: 1 pairs of the train part left out, since one of their sides is empty"]
    turned, _ = read_parts(TranslationData("wmt14", download=True, source="fr", target="en"))
    assert turned["test"] == PARTS["test"][::-1] and asked[1:] == [("wmt14", "fr-en")]
    with pytest.raises(ArgumentError, match=r"data.root: expected the folder of the files, or data.download=true"):
        read_parts(TranslationData("wmt14"))
    with pytest.raises(ArgumentError, match=r"data.source: expected en or a translation into en"):
        read_parts(TranslationData("wmt14", download=True, source="fr"))


def test_files_out_of_step_empty_lines_and_bad_bytes(tmp_path) -> None:
    root = folder(tmp_path, MULTI30K, zipped=False)
    file = tmp_path / "train.de"
    lines = file.read_bytes().split(b"\n")
    for broken, message in (
        (lines[:4] + lines[5:], r"train.en, line 60: expected its translation in .*train.de, which has only 59 lines"),
        ([*lines[:4], b"", *lines[5:]], r"train.de, line 5: expected text, the line is empty"),
        ([*lines[:4], b"f\xfcr", *lines[5:]], r"train.de, line 5: expected text in UTF-8, found the byte 0xfc"),
    ):
        file.write_bytes(b"\n".join(broken))
        with pytest.raises(TextFileError, match=message):
            load_pairs(TranslationData("multi30k", root, vocabulary=300))
    with pytest.raises(ArgumentError, match=r"data.root: expected the folder of the files"):
        read_parts(TranslationData("multi30k"))
    (tmp_path / "val.en").unlink()
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(ArgumentError, match=r"data.root: expected val.en or val.en.gz in the folder"):
        read_parts(TranslationData("multi30k", root))


def test_what_is_too_long_is_counted() -> None:
    settings = TranslationData(sentences=40, target="xx", vocabulary=300)
    whole = load_pairs(settings)
    assert whole.notes == ()
    lengths = sorted(whole.parts["train"].lengths - 1)
    limit = int(lengths[20])
    kept = sum(length <= limit for length in lengths)
    short = load_pairs(TranslationData(sentences=40, target="xx", vocabulary=300, longest=limit))
    (note,) = short.notes
    assert note.startswith(
        f"data.longest: {40 - kept} of 40 training pairs left out, since they have more than {limit}"
    )
    assert short.counts == {"train": kept, "validation": 8, "test": 8}
    assert short.checksums["train"] != whole.checksums["train"] and short.checksums["test"] == whole.checksums["test"]
    part = short.parts["train"]
    assert (part.lengths - 1).max() == limit
    padded = part.source.padded(*_all(part), None, None)
    decoded = short.subwords.decode([line[line != 0].tolist() for line in padded])
    assert decoded == list(part.texts.source)
    with pytest.raises(ArgumentError, match=r"data.longest: expected training pairs of at most 2 subwords, found none"):
        load_pairs(TranslationData(sentences=40, target="xx", vocabulary=300, longest=2))


def _all(part):
    import numpy as np

    return np.arange(len(part.texts.source)), int(part.lengths.max())


def test_generated_parts_share_no_sentence() -> None:
    parts = toy_sentences.generate(300, seed=0)
    every = [text for pairs in parts.values() for text in pairs.source]
    assert len(every) == len(set(every)) == 360
    assert toy_sentences.generate(300, seed=0) == parts != toy_sentences.generate(300, seed=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "wmt"}, "data.name: expected one of 'toy-translation', 'multi30k'"),
        ({"target": "en"}, "data.target: expected another language than the source 'en'"),
        ({"source": "../x"}, "data.source: expected the code of a language"),
        ({"vocabulary": 100}, "data.vocabulary: expected an integer >= 259"),
        ({"name": "opus"}, "data.train: expected the file of the pairs without its language"),
        ({"train": "x"}, "data.train: expected null, toy-translation reads no files"),
        ({"limit": 0}, "data.limit"),
    ],
)
def test_wrong_settings(settings: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TranslationData(**settings)


def test_sizes_of_models() -> None:
    assert TransformerSettings().sizes == (4, 128, 256, 4)
    assert TransformerSettings("base", heads=4).sizes == (6, 512, 2048, 4)
    with pytest.raises(ArgumentError, match="width: expected an even multiple of the 4 heads, received 30"):
        TransformerSettings(width=30)
    with pytest.raises(ArgumentError, match="norm: expected one of 'post', 'pre'"):
        TransformerSettings(norm="both")
