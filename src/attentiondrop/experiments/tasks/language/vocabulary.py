"""Tokens and their numbers: characters, words, subwords, or the tokenizer of a local folder of transformers."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ....errors import bad_argument
from ..from_transformers.local_tokenizer import load_tokenizer, tokenizer_checksum
from ..text.subwords import Subwords, train_subwords
from .language_settings import TextSettings

UNKNOWN = "<unk>"
#: The token for the end of a line in texts that are read by words.
END_OF_LINE = "<eos>"


class Vocabulary(ABC):
    """Text to numbers and back."""

    @abstractmethod
    def __len__(self) -> int:
        """How many tokens there are."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The numbers of the tokens of a text."""

    @abstractmethod
    def decode(self, numbers: Sequence[int]) -> str:
        """The text of some tokens."""

    @abstractmethod
    def texts(self, numbers: Sequence[int]) -> list[str]:
        """Each token alone, for pictures."""

    @property
    @abstractmethod
    def checksum(self) -> str:
        """SHA-256 of everything that decides how texts are encoded."""


class _Listed(Vocabulary):
    """Tokens from a list. Tokens that are not in it become `UNKNOWN`, which is number 0."""

    #: What stands between two tokens in a text.
    between: str

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = [UNKNOWN, *(token for token in tokens if token != UNKNOWN)]
        self._numbers = {token: number for number, token in enumerate(self._tokens)}

    def __len__(self) -> int:
        return len(self._tokens)

    @staticmethod
    def cut(text: str) -> Iterable[str]:
        """The tokens of a text."""
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """The numbers of the tokens of a text."""
        return [self._numbers.get(token, 0) for token in self.cut(text)]

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of some tokens."""
        return self.between.join(self._tokens[number] for number in numbers)

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """Each token alone."""
        return [_visible(self._tokens[number]) for number in numbers]

    @property
    def checksum(self) -> str:
        """SHA-256 of kind and tokens."""
        return hashlib.sha256(repr((type(self).__name__, self._tokens)).encode()).hexdigest()


class Characters(_Listed):
    """Every character is a token.

    >>> characters = Characters.learn("abba")
    >>> characters.encode("abc"), characters.decode([1, 2])
    ([1, 2, 0], 'ab')
    """

    between = ""

    @classmethod
    def learn(cls, text: str) -> Characters:
        """The characters of a text."""
        return cls(sorted(set(text)))

    @staticmethod
    def cut(text: str) -> Iterable[str]:
        """The characters."""
        return text


class Words(_Listed):
    """Every word is a token. Words are what stands between spaces, and every line ends with a token of its own.

    >>> words = Words.learn("a b a\\nc\\n", 3)
    >>> words.encode("a c\\nd\\n"), words.decode([1, 2])
    ([2, 0, 1, 0, 1], '<eos> a')
    """

    between = " "

    @classmethod
    def learn(cls, text: str, size: int | None) -> Words:
        """The words of a text; at most `size` of them with `UNKNOWN`, the most frequent ones."""
        counted = Counter(cls.cut(text))
        del counted[UNKNOWN]  # it has a number anyway
        # By count and then by name: the order must not depend on where words stand in the text.
        words = sorted(counted, key=lambda word: (-counted[word], word))
        return cls(words if size is None else words[: size - 1])

    @staticmethod
    def cut(text: str) -> Iterable[str]:
        """The words and the ends of lines."""
        ends = text.count("\n")
        for index, line in enumerate(text.split("\n")):
            yield from line.split()
            if index < ends:
                yield END_OF_LINE


class Bpe(Vocabulary):
    """Byte-pair encoding, learned from the training text."""

    def __init__(self, subwords: Subwords) -> None:
        self._subwords = subwords

    def __len__(self) -> int:
        return len(self._subwords)

    def encode(self, text: str) -> list[int]:
        """The numbers of the subwords of a text."""
        return self._subwords.encode([text])[0]

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of some subwords."""
        return self._subwords.decode([numbers])[0]

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """Each subword alone."""
        return [_visible(text) for text in self._subwords.texts(numbers)]

    @property
    def checksum(self) -> str:
        """SHA-256 of the encoding."""
        return self._subwords.checksum


class FolderTokenizer(Vocabulary):
    """The tokenizer of a local folder of transformers, for a pretrained model."""

    def __init__(self, folder: str) -> None:
        self._tokenizer: Any = load_tokenizer(folder)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """The numbers of the tokens of a text, without special tokens at its ends."""
        # Not as a batch of one: the warning about texts that are longer than the model does not concern us.
        numbers: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return numbers

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of some tokens."""
        text: str = self._tokenizer.decode(list(numbers))
        return text

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """Each token alone."""
        return [_visible(self._tokenizer.decode([number])) for number in numbers]

    @property
    def checksum(self) -> str:
        """SHA-256 of the tokenizer."""
        return tokenizer_checksum(self._tokenizer)


def _visible(text: str) -> str:
    """The text of a token, with signs for what cannot be seen."""
    return text.replace(" ", "_").replace("\n", "\\n")


def learn_vocabulary(settings: TextSettings, text: str) -> Vocabulary:
    """The vocabulary for the training text."""
    if settings.tokens == "characters":
        return Characters.learn(text)
    if settings.tokens == "words":
        return Words.learn(text, settings.vocabulary)
    if settings.tokens == "bpe" and settings.vocabulary is not None:
        return Bpe(train_subwords([text], settings.vocabulary, sentences=False))
    if settings.tokenizer is None:
        raise bad_argument("data.tokenizer", "a local folder", settings.tokenizer)
    return FolderTokenizer(settings.tokenizer)
