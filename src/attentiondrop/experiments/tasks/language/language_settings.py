"""The sections `data` and `model` of a recipe for language models. Values are checked at once."""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import bad_argument
from ....validation import integer, number, one_of
from ..from_transformers.transformers_settings import TransformersSettings
from ..interface import DataSettings

#: Where text comes from: generated sentences, one file that is split, or a folder with a file for each part.
SOURCES = ("generated", "file", "parts")
#: What a token is. `tokenizer` takes the tokenizer in a local folder of transformers.
TOKENS = ("characters", "words", "bpe", "tokenizer")
#: What becomes of the text of `file` that is held out of training.
HELD_OUT = ("halves", "whole")


@dataclass(frozen=True)
class TextSettings(DataSettings):
    """Settings of the text. Files are read only when the data is loaded; each may be plain or gzipped.

    Attributes:
        name: `generated`; `file`: `root` is a text file; `parts`: `root` is a folder with exactly one file each whose
            name contains train, valid and test.
        tokens: one of `TOKENS`.
        vocabulary: for `bpe` the number of subwords; for `words` the most frequent ones that are kept, all if None.
        tokenizer: for `tokenizer`, a local folder of transformers.
        block: how many tokens the model sees at once. Training and evaluation use no other length.
        stride: how far apart the windows of an evaluation begin. Each token is scored once, in the first window that
            holds it. If None, windows follow each other, so the first tokens of each have little context.
        train: for `file`, the share of the text to train on, counted from its beginning.
        held_out: for `file`, `halves` makes the first half of the rest the validation part and the second half the test
            part. `whole` uses all of the rest as both: then a score is not independent of the choice of the epoch.
        limit: at most this many tokens of each part, for quick trials.
        sentences: for `generated`, how many sentences the training part has; the other parts have a quarter each.
        seed: for `generated`.

    Example:
        >>> TextSettings("file", root="input.txt", block=256).tokens
        'characters'
        >>> TextSettings(block=0)
        Traceback (most recent call last):
        attentiondrop.errors.ArgumentError: data.block: expected a number >= 1, received 0
    """

    name: str = "generated"
    root: str | None = None
    download: bool = False
    tokens: str = "characters"
    vocabulary: int | None = None
    tokenizer: str | None = None
    block: int = 32
    stride: int | None = None
    train: float = 0.9
    held_out: str = "halves"
    limit: int | None = None
    sentences: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("data.name", self.name, SOURCES)
        one_of("data.tokens", self.tokens, TOKENS)
        one_of("data.held_out", self.held_out, HELD_OUT)
        if self.download:
            raise bad_argument("data.download", "false: text is read from data.root", self.download)
        for name in ("block", "sentences"):
            integer(f"data.{name}", getattr(self, name), minimum=1)
        for name in ("vocabulary", "stride", "limit"):
            if getattr(self, name) is not None:
                integer(f"data.{name}", getattr(self, name), minimum=1)
        integer("data.seed", self.seed, minimum=0)
        if self.stride is not None and self.stride > self.block:
            raise bad_argument("data.stride", f"at most data.block, {self.block}", self.stride)
        if not 0.0 < number("data.train", self.train, 0.0, 1.0) < 1.0:
            raise bad_argument("data.train", "a number in (0, 1)", self.train)
        if self.tokens == "bpe" and self.vocabulary is None:
            raise bad_argument("data.vocabulary", "the number of subwords for data.tokens bpe", self.vocabulary)
        if self.tokens in ("characters", "tokenizer") and self.vocabulary is not None:
            raise bad_argument("data.vocabulary", f"none for data.tokens {self.tokens}", self.vocabulary)
        if (self.tokens == "tokenizer") != (self.tokenizer is not None):
            raise bad_argument(
                "data.tokenizer", "a local folder with data.tokens tokenizer, otherwise none", self.tokenizer
            )


@dataclass(frozen=True)
class DecoderSettings(TransformersSettings):
    """A causal language model of transformers, such as `gpt2` or `llama`, new or from a local folder."""

    name: str = "gpt2"
