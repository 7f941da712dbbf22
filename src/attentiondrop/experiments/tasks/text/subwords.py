"""Subwords: byte-pair encoding, trained on the training text with Hugging Face's tokenizers.

It works on bytes, so every text can be encoded and decoded without loss, and there is no unknown subword.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from ....errors import bad_argument
from ....validation import integer
from ..optional_packages import imported

#: Numbers of the special subwords. They have no text.
PAD, BEGIN, END = 0, 1, 2
SPECIAL = ("<pad>", "<s>", "</s>")
#: One for each byte, and the special ones.
SMALLEST = 256 + len(SPECIAL)


class Subwords:
    """A trained byte-pair encoding: text to numbers and back.

    >>> subwords = train_subwords(["a small cat", "a small dog"] * 20, 270)
    >>> subwords.decode(subwords.encode(["a small cat, é"]))
    ['a small cat, é']
    >>> len(subwords) <= 270
    True
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # "<s>" in a text is text
        #: Whether texts are sentences, see `train_subwords`.
        self._sentences: bool = tokenizer.pre_tokenizer.add_prefix_space

    def __len__(self) -> int:
        """How many subwords there are, the special ones included."""
        size: int = self._tokenizer.get_vocab_size()
        return size

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of each text, without special subwords."""
        texts = [text.strip() for text in texts] if self._sentences else list(texts)
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, numbers: Sequence[Sequence[int]]) -> list[str]:
        """The texts; special subwords are left out. Bytes that are not UTF-8 become U+FFFD."""
        texts = self._tokenizer.decode_batch([list(each) for each in numbers], skip_special_tokens=True)
        return [text.removeprefix(" ") for text in texts] if self._sentences else texts

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """Each subword of a sentence alone, for pictures. A space before a word is shown as "_"."""
        return [
            SPECIAL[number]
            if number < len(SPECIAL)
            else self._tokenizer.decode([number], skip_special_tokens=False).replace(" ", "_")
            for number in numbers
        ]

    @property
    def checksum(self) -> str:
        """SHA-256 of everything that decides how texts are encoded."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The encoding as text, in the format of tokenizers."""
        text: str = self._tokenizer.to_str()
        return text

    @classmethod
    def from_json(cls, text: str) -> Subwords:
        """Read what `to_json` returned."""
        return cls(imported("tokenizers").Tokenizer.from_str(text))


def train_subwords(texts: Iterable[str], size: int, *, sentences: bool = True) -> Subwords:
    """Learn at most `size` subwords from texts. The same texts give the same subwords.

    For a vocabulary that two languages share, pass the texts of both. Texts are sentences: spaces around them do not
    count, and their first word is encoded as everywhere else. With `sentences=False` they are any text, as it is.
    """
    if integer("size", size, minimum=1) < SMALLEST:
        raise bad_argument("vocabulary", f"at least {SMALLEST} subwords, one for each byte and {len(SPECIAL)}", size)
    tokenizers = imported("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    # With a space before the first word, a word has the same subwords everywhere in a sentence.
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=sentences)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Subwords(tokenizer)
