"""Text as tokens: nothing is lost, every token is scored once, and bad files are named."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.tasks.language.language_settings import TextSettings
from attentiondrop.experiments.tasks.language.loading import load_text
from attentiondrop.experiments.tasks.language.token_data import IGNORED, TokenData
from attentiondrop.experiments.tasks.language.vocabulary import Characters, Words, learn_vocabulary
from attentiondrop.experiments.tasks.registry import find_task
from attentiondrop.experiments.tasks.text.generated_sentences import generated_text

TEXT = "one two  three\ntwo <unk> four\n\nfive\n" * 30


@pytest.mark.parametrize("tokens, size", [("characters", None), ("bpe", 270)])
def test_every_text_comes_back(tokens: str, size: int | None) -> None:
    vocabulary = learn_vocabulary(TextSettings(tokens=tokens, vocabulary=size), TEXT)
    numbers = vocabulary.encode(TEXT)
    assert vocabulary.decode(numbers) == TEXT
    assert max(numbers) < len(vocabulary)
    assert len(vocabulary.texts(numbers[:9])) == 9 and not any("\n" in text for text in vocabulary.texts(numbers))


def test_the_tokenizer_of_a_folder(tmp_path: Path) -> None:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([TEXT], 300)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer).save_pretrained(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    data = load_text(
        TextSettings("file", str(tmp_path / "text.txt"), tokens="tokenizer", tokenizer=str(tmp_path), block=8)
    )
    assert data.vocabulary.decode(data.tokens["train"].tolist()) == TEXT[: int(len(TEXT) * 0.9)]
    assert len(data.vocabulary) > 256 and data.vocabulary.texts(data.tokens["train"].tolist()[:2])[0].startswith("o")
    other = load_text(TextSettings("file", str(tmp_path / "text.txt"), tokens="bpe", vocabulary=300, block=8))
    assert data.checksums != other.checksums and data.vocabulary.checksum == data.vocabulary.checksum


def test_what_a_report_says_of_the_text() -> None:
    task = find_task("language")
    assert task.special({"name": "file", "held_out": "whole", "limit": 9}) == [
        "the test part is the validation part, on which epochs were chosen",
        "at most 9 tokens of each part",
    ]
    assert task.special({"name": "generated", "held_out": "halves", "limit": None}) == []
    assert set(task.packages(TextSettings())) == {"transformers", "tokenizers"} and task.extra == "sequences"


def test_words_are_those_of_wikitext() -> None:
    words = Words.learn(TEXT, None)
    assert words.texts(words.encode("two <unk> six\n\n")) == ["two", "<unk>", "<unk>", "<eos>", "<eos>"]
    assert words.texts(words.encode("no end")) == ["<unk>", "<unk>"]
    # The most frequent words stay: the end of a line, and "two".
    assert sorted(Words.learn(TEXT, 3)._tokens) == ["<eos>", "<unk>", "two"]
    assert Words.learn("b a", None).checksum == Words.learn("a b", None).checksum != Characters.learn("ab").checksum


def data_of(count: int, block: int, stride: int | None = None, **parts: int) -> TokenData:
    """Tokens that are numbered, so that a window tells where it begins."""
    vocabulary = Characters.learn("".join(map(chr, range(200))))
    tokens = {part: torch.arange(size, dtype=torch.int32) for part, size in {"train": count, **parts}.items()}
    return TokenData(vocabulary, tokens, {part: len(x) for part, x in tokens.items()}, block, stride or block)


@pytest.mark.parametrize("size", [2, 8, 9, 10, 17, 40])
@pytest.mark.parametrize("stride", [1, 3, 8])
@pytest.mark.parametrize("world", [1, 3])
def test_an_evaluation_scores_every_token_once(size: int, stride: int, world: int) -> None:
    data, scored = data_of(99, 8, stride, test=size), []
    for rank in range(world):
        batches = list(data.batches("test", 4, rank=rank, world=world))
        shapes = [tuple(targets.shape) for _, targets in batches]
        assert shapes == [tuple(targets.shape) for _, targets in data.batches("test", 4, rank=0, world=world)]
        for inputs, targets in batches:
            here = targets != IGNORED
            assert torch.equal(inputs["input_ids"][here] + 1, targets[here])
            scored += targets[here].tolist()
            # All but the first window see at least block - stride tokens before the one that they predict.
            first = inputs["input_ids"][:, :1]
            assert ((targets - first > 8 - stride) | ~here | (first == 0)).all()
    assert sorted(scored) == list(range(1, size))
    alone = [targets for _, targets in data.batches("test", 4)]
    assert all(len(targets) <= 4 and (targets != IGNORED).any(1).all() for targets in alone)  # no window for nothing
    assert data.counts["test"] == sum(map(len, alone)) and len(list(data.batches("train", 4))) >= 1


def test_an_epoch_sees_every_token_once_and_cuts_elsewhere() -> None:
    data, firsts = data_of(8 * 13, 8), set()
    assert data.counts["train"] == 12 and data.steps(5) == 2 and data.steps(50) == 1
    for epoch in range(6):
        batches = list(data.train_batches(seed=1, epoch=epoch, batch_size=4))
        tokens = torch.cat([inputs["input_ids"] for inputs, _ in batches])
        assert tokens.shape == (12, 8) and len(tokens.unique()) == 96
        assert all(torch.equal(inputs["input_ids"] + 1, targets) for inputs, targets in batches)
        assert tokens[:, 0].tolist() != sorted(tokens[:, 0].tolist())
        firsts.add(int(tokens.min()))
        again = list(data.train_batches(seed=1, epoch=epoch, batch_size=4))
        assert all(torch.equal(one.targets, other.targets) for one, other in zip(batches, again, strict=True))
        # Two processes get the halves of the same batches.
        shares = [list(data.train_batches(seed=1, epoch=epoch, batch_size=4, rank=r, world=2)) for r in (0, 1)]
        for batch, *halves in zip(batches, *shares, strict=True):
            assert torch.equal(batch.targets, torch.cat([half.targets for half in halves]))
    assert len(firsts) > 1
    with pytest.raises(ArgumentError, match="batches that 3 processes share equally, received 4"):
        next(data.train_batches(seed=1, epoch=0, batch_size=4, world=3))


def test_one_file_is_split_as_nanogpt_splits_it(tmp_path: Path) -> None:
    text = "".join(chr(97 + number * 7 % 26) for number in range(1001))
    for path, write in ((tmp_path / "a.txt", Path.write_bytes), (tmp_path / "a.gz", None)):
        path.write_bytes(text.encode() if write else gzip.compress(text.encode()))
        data = load_text(TextSettings("file", root=str(path), block=16))
        decoded = {part: data.vocabulary.decode(tokens.tolist()) for part, tokens in data.tokens.items()}
        assert decoded == {"train": text[:900], "validation": text[900:950], "test": text[950:]}
    whole = load_text(TextSettings("file", root=str(tmp_path / "a.gz"), block=16, held_out="whole"))
    assert whole.vocabulary.decode(whole.tokens["test"].tolist()) == text[900:]
    assert whole.checksums["test"] == whole.checksums["validation"] != data.checksums["validation"]
    few = load_text(TextSettings("file", root=str(tmp_path / "a.gz"), block=16, limit=40))
    assert [len(tokens) for tokens in few.tokens.values()] == [40, 40, 40] and few.bytes["train"] == 40


def test_a_folder_has_one_file_for_each_part(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / f"wiki.{part}.tokens").write_text(f" = {part} = \n a <unk> b\n" * 20)
    data = load_text(TextSettings("parts", root=str(tmp_path), tokens="words", block=4))
    assert data.vocabulary.texts(data.tokens["validation"][:8].tolist()) == [
        "=", "<unk>", "=", "<eos>", "a", "<unk>", "b", "<eos>"
    ]  # fmt: skip
    assert data.bytes["test"] == len(" = test = \n a <unk> b\n") * 20
    (tmp_path / "another.train.txt").touch()
    with pytest.raises(ArgumentError, match=r"one file with 'train' in its name .* another.train.txt, wiki.train.tok"):
        load_text(TextSettings("parts", root=str(tmp_path), tokens="words", block=4))


def test_bad_text_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"good\n\xff\n")
    for settings, message in (
        (TextSettings("file"), "data.root: expected the path of the text, received None"),
        (TextSettings("file", root=str(bad)), "bad.txt, line 2: expected text in UTF-8, found the byte 0xff"),
        (TextSettings("file", root=str(tmp_path / "no")), "expected a text file that can be read: No such file"),
        (TextSettings("parts", root=str(bad)), "data.root: expected a folder with a file for each part"),
        (TextSettings(sentences=1), "expected at least 64 tokens in the train part for blocks of 32, received 5"),
        (TextSettings(tokens="tokenizer", tokenizer=str(tmp_path)), "data.tokenizer: expected a local folder with a t"),
    ):
        with pytest.raises(ArgumentError, match=message):
            load_text(settings)
    bad.write_text("")
    with pytest.raises(ArgumentError, match="data: expected text in the train part, it is empty"):
        load_text(TextSettings("file", root=str(bad)))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"name": "web"}, "data.name: expected one of 'generated', 'file', 'parts', received 'web'"),
        ({"stride": 33}, "data.stride: expected at most data.block, 32, received 33"),
        ({"train": 1.0}, r"data.train: expected a number in \(0, 1\), received 1.0"),
        ({"tokens": "bpe"}, "data.vocabulary: expected the number of subwords for data.tokens bpe, received None"),
        ({"vocabulary": 9}, "data.vocabulary: expected none for data.tokens characters, received 9"),
        ({"tokenizer": "x"}, "data.tokenizer: expected a local folder with data.tokens tokenizer, otherwise none, rec"),
        ({"download": True}, "data.download: expected false: text is read from data.root, received True"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TextSettings(**settings)


def test_parts_of_generated_text_differ() -> None:
    texts = {generated_text(20, seed) for seed in range(3)}
    assert len(texts) == 3 and generated_text(20, 0) in texts
