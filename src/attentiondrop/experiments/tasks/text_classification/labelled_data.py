"""Texts of one length in tokens, in three parts, each text with one class."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ....errors import bad_argument
from ....validation import integer, one_of
from ..class_scores import FILLING
from ..draw_keys import key
from ..from_transformers.local_tokenizer import load_tokenizer
from ..interface import Batch
from .labelled_files import Labelled, read_labelled
from .labelled_settings import LabelledSettings

#: Numbers of tokens without a tokenizer: padding, and words that the training part does not have.
_PAD, _UNKNOWN = 0, 1


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Tokens [N, length] with their number [N] and labels [N] of each part; the first tokens of a row are the text."""

    tokens: dict[str, Tensor]
    lengths: dict[str, Tensor]
    labels: dict[str, Tensor]
    #: Names of the classes.
    classes: tuple[str, ...]
    #: How many different tokens there are, and which of them is padding.
    vocabulary: int
    pad: int
    #: Lines for people: how many texts were cut off.
    notes: tuple[str, ...] = ()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def words(self) -> str:
        """A description of an example, for error messages."""
        return f"texts of {self.tokens['train'].shape[1]} tokens"

    @property
    def counts(self) -> dict[str, int]:
        """Part -> number of texts."""
        return {part: len(labels) for part, labels in self.labels.items()}

    @property
    def checksums(self) -> dict[str, str]:
        """Part -> SHA-256 of tokens, labels and the names of classes."""
        found = {}
        for part in self.labels:
            each = hashlib.sha256(repr((self.classes, self.vocabulary, self.pad)).encode())
            for held in (self.tokens, self.lengths, self.labels):
                each.update(held[part].cpu().numpy().tobytes())
            found[part] = each.hexdigest()
        return found

    def having(self, *parts: str) -> LabelledData:
        """The data with only these parts."""
        kept = [{part: held[part] for part in parts} for held in (self.tokens, self.lengths, self.labels)]
        return dataclasses.replace(self, tokens=kept[0], lengths=kept[1], labels=kept[2])

    def to(self, device: str | torch.device) -> LabelledData:
        """The same data on `device`."""
        moved = [{part: x.to(device) for part, x in held.items()} for held in (self.tokens, self.lengths, self.labels)]
        return dataclasses.replace(
            self, tokens=moved[0], lengths=moved[1], labels=moved[2], device=torch.device(device)
        )

    def steps(self, batch_size: int) -> int:
        """The number of batches in an epoch. An incomplete last batch is left out, unless it is the only one."""
        return max(1, len(self.labels["train"]) // integer("batch_size", batch_size, 1))

    def train_batches(
        self, *, seed: int, epoch: int, batch_size: int, rank: int = 0, world: int = 1
    ) -> Iterator[Batch]:
        """One epoch of shuffled texts; `batch_size` counts the texts of all ranks."""
        count = len(self.labels["train"])
        size = min(batch_size, count)
        if size % world:
            raise bad_argument("batch_size", f"batches that {world} processes share equally", size)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(key("order", seed, epoch)))
        order, share = order.to(self.device), size // world
        for step in range(self.steps(batch_size)):
            begin = step * size + rank * share
            yield self._batch("train", order[begin : begin + share])

    def batches(self, part: str, batch_size: int, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """All texts of a part, in order. All ranks get as many; at the end some have the label `FILLING`."""
        one_of("part", part, tuple(self.labels))
        count = len(self.labels[part])
        for begin in range(0, count, batch_size):
            end = min(count, begin + batch_size)
            share = -(-(end - begin) // world)
            places = begin + rank * share + torch.arange(share, device=self.device)
            batch = self._batch(part, places.clamp_max(count - 1))
            yield batch._replace(targets=torch.where(places < end, batch.targets, FILLING))

    def _batch(self, part: str, places: Tensor) -> Batch:
        tokens, lengths = self.tokens[part][places].long(), self.lengths[part][places]
        seen = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        return Batch({"input_ids": tokens, "attention_mask": seen.long()}, self.labels[part][places])


class _Encoded(NamedTuple):
    """Rows of at most `length` tokens for each part, and what they are made of."""

    rows: dict[str, list[list[int]]]
    #: Part -> how many texts were longer.
    cut: dict[str, int]
    vocabulary: int
    pad: int


def load_labelled(settings: LabelledSettings) -> LabelledData:
    """Read the texts and turn them into tokens."""
    parts, length = read_labelled(settings), settings.length
    classes = tuple(sorted({label for label, _ in parts["train"]}))
    found = _by_words(parts, length) if settings.tokenizer is None else _by_tokenizer(parts, settings)
    padded = {part: [[*row, *[found.pad] * (length - len(row))] for row in rows] for part, rows in found.rows.items()}
    return LabelledData(
        {part: torch.tensor(rows, dtype=torch.int32) for part, rows in padded.items()},
        {part: torch.tensor([len(row) for row in rows]) for part, rows in found.rows.items()},
        {part: torch.tensor([classes.index(label) for label, _ in texts]) for part, texts in parts.items()},
        classes,
        found.vocabulary,
        found.pad,
        tuple(
            f"{cut} of {len(parts[part])} texts of the {part} part cut off after {length} tokens"
            for part, cut in found.cut.items()
            if cut
        ),
    )


def _by_words(parts: dict[str, Labelled], length: int) -> _Encoded:
    words = sorted({word for _, text in parts["train"] for word in text.split()})
    numbers = {word: number for number, word in enumerate(words, start=_UNKNOWN + 1)}
    whole = {
        part: [[numbers.get(word, _UNKNOWN) for word in text.split()] for _, text in found]
        for part, found in parts.items()
    }
    rows = {part: [row[:length] for row in rows] for part, rows in whole.items()}
    return _Encoded(rows, _longer(whole, rows), len(words) + 2, _PAD)


def _by_tokenizer(parts: dict[str, Labelled], settings: LabelledSettings) -> _Encoded:
    tokenizer = load_tokenizer(str(settings.tokenizer))
    if tokenizer.pad_token_id is None:
        raise bad_argument("data.tokenizer", "a tokenizer with a padding token", settings.tokenizer)
    special = tokenizer.num_special_tokens_to_add()
    if settings.length <= special:
        raise bad_argument("data.length", f"more than the {special} special tokens of each text", settings.length)
    whole, rows = (
        {
            part: tokenizer([text for _, text in found], verbose=False, **how)["input_ids"]
            for part, found in parts.items()
        }
        # The tokenizer cuts off itself, since it keeps its special token at the end.
        for how in ({}, {"truncation": True, "max_length": settings.length})
    )
    return _Encoded(rows, _longer(whole, rows), len(tokenizer), tokenizer.pad_token_id)


def _longer(whole: dict[str, list[list[int]]], rows: dict[str, list[list[int]]]) -> dict[str, int]:
    """Part -> how many texts have more tokens than their rows."""
    return {
        part: sum(len(one) > len(other) for one, other in zip(whole[part], rows[part], strict=True)) for part in whole
    }
