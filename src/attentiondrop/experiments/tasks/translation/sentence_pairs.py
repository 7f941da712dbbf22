"""Pairs of sentences as subwords, in three parts, in batches that depend only on seed and epoch."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....errors import ArgumentError, bad_argument
from ....validation import integer, one_of
from ..draw_keys import key
from ..interface import Batch
from ..text.aligned_files import Pairs
from ..text.subwords import BEGIN, END, PAD, Subwords, train_subwords
from .length_buckets import NOBODY, ROWS, Numbers, Planned, in_order, plan, shapes, share
from .parallel_text import read_parts
from .translation_settings import TOY, TranslationData

#: Texts that are encoded at a time.
_AT_ONCE = 100_000


class Targets(NamedTuple):
    """The subwords to predict, [rows, length], padded; and how many there are without padding."""

    tokens: Tensor
    counted: float


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sentences of subwords one after another, without padding."""

    flat: NDArray[np.int32]
    #: Where each sentence begins, and the end of the last one.
    starts: Numbers

    @classmethod
    def of(cls, subwords: Subwords, texts: Sequence[str]) -> Ragged:
        """Encode texts."""
        flats, lengths = [np.empty(0, np.int32)], [0]
        for start in range(0, len(texts), _AT_ONCE):
            found = subwords.encode(texts[start : start + _AT_ONCE])
            lengths += [len(each) for each in found]
            flats.append(np.fromiter((number for each in found for number in each), np.int32))
        return cls(np.concatenate(flats), np.cumsum(lengths, dtype=np.int64))

    @property
    def lengths(self) -> Numbers:
        """Subwords of each sentence."""
        return np.diff(self.starts)

    def padded(self, members: Numbers, length: int, before: int | None, after: int | None) -> Tensor:
        """[members, length] int64: each sentence, with `before` in front and `after` behind it, and then padding.

        A member that is `NOBODY` is a sentence without subwords.
        """
        real = members != NOBODY
        starts = np.where(real, self.starts[members], 0)
        lengths = np.where(real, self.starts[members + 1] - starts, 0)
        places = np.arange(length) - (before is not None)
        inside = (places >= 0) & (places < lengths[:, None])
        if not len(self.flat):
            found = np.full(inside.shape, PAD, np.int64)
        else:
            taken = np.where(inside, starts[:, None] + places, 0)
            found = np.where(inside, self.flat[taken], PAD).astype(np.int64)
        if before is not None:
            found[:, 0] = before
        if after is not None:
            found[np.arange(len(members)), lengths + (before is not None)] = after
        return torch.from_numpy(found)

    def chosen(self, members: Numbers) -> Ragged:
        """Only some of the sentences."""
        lengths = self.lengths[members]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.starts[members] - starts[:-1], lengths) + np.arange(starts[-1])
        return Ragged(self.flat[places], starts)


@dataclass(frozen=True, eq=False)
class Part:
    """One part of the data: texts, and the same as subwords."""

    texts: Pairs
    source: Ragged
    target: Ragged

    @property
    def lengths(self) -> Numbers:
        """Of each pair: subwords of the longer sentence, with its end."""
        return np.maximum(self.source.lengths, self.target.lengths) + 1


@dataclass(frozen=True, kw_only=True, eq=False)
class SentencePairs:
    """Pairs of sentences in the parts "train", "validation" and "test". See `tasks.interface.Data`."""

    settings: TranslationData
    subwords: Subwords
    parts: dict[str, Part]
    #: Part -> SHA-256 of its subwords, and so of its text and of the encoding.
    checksums: dict[str, str]
    #: What was left out, in words.
    notes: tuple[str, ...] = ()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def counts(self) -> dict[str, int]:
        """Part -> number of pairs."""
        return {part: len(found.texts.source) for part, found in self.parts.items()}

    @property
    def words(self) -> str:
        """What an example is."""
        return f"pairs of sentences, {self.settings.source} to {self.settings.target}"

    @property
    def generated(self) -> bool:
        """Whether nobody owns the sentences, so that reports may show them."""
        return self.settings.name == TOY

    def having(self, *parts: str) -> SentencePairs:
        """The data with only these parts."""
        return dataclasses.replace(
            self,
            parts={part: self.parts[part] for part in parts},
            checksums={part: self.checksums[part] for part in parts},
        )

    def to(self, device: str | torch.device) -> SentencePairs:
        """The same data with batches on `device`."""
        return dataclasses.replace(self, device=torch.device(device))

    def steps(self, batch_size: int) -> int:
        """The number of batches in an epoch. `batch_size` counts subwords of one language, padding included."""
        return len(shapes(self.parts["train"].lengths, batch_size))

    def padded_lengths(self, batch_size: int) -> set[int]:
        """The lengths of the batches of an epoch, padding included."""
        return {length for _, length in shapes(self.parts["train"].lengths, batch_size)}

    def subwords_of_epoch(self) -> int:
        """Subwords of the target that an epoch predicts."""
        train = self.parts["train"].target
        return len(train.flat) + len(train.starts) - 1

    def train_batches(
        self, *, seed: int, epoch: int, batch_size: int, rank: int = 0, world: int = 1
    ) -> Iterator[Batch]:
        """One epoch. All sentences are there once."""
        if ROWS % world:
            raise bad_argument("world", f"a divisor of {ROWS}", world)
        train = self.parts["train"]
        rng = np.random.default_rng(key("order", seed, epoch))
        for members, length in plan(train.lengths, batch_size, rng):
            mine = np.split(members, world)[rank]
            yield self._batch(train, Planned(mine, length))

    def batches(self, part: str, batch_size: int, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """The batches of a whole part, shortest sentences first."""
        return (batch for _, batch in self.numbered_batches(part, batch_size, rank=rank, world=world))

    def numbered_batches(
        self, part: str, batch_size: int, *, rank: int = 0, world: int = 1
    ) -> Iterator[tuple[Numbers, Batch]]:
        """The same, each with the numbers of its pairs in the part.

        All ranks get the same number of batches. A rank that has one batch less than others gets the first one again,
        without numbers.
        """
        one_of("part", part, tuple(self.parts))
        found = self.parts[part]
        batches = in_order(found.lengths, integer("batch_size", batch_size, 1))
        for members in share(batches, rank, world):
            taken = batches[0] if members is None else members
            batch = self._batch(found, Planned(taken, int(found.lengths[taken].max())))
            yield taken[:0] if members is None else members, batch

    def sentence(self, part: str, number: int) -> tuple[Tensor, Tensor]:
        """One pair without padding, as a model gets it: source [1, S] and target [1, T]."""
        found, members = self.parts[part], np.array([number])
        source = found.source.padded(members, int(found.source.lengths[number]) + 1, None, END)
        target = found.target.padded(members, int(found.target.lengths[number]) + 1, BEGIN, None)
        return self._moved(source), self._moved(target)

    def _batch(self, part: Part, planned: Planned) -> Batch:
        members, length = planned
        source = part.source.padded(members, length, None, END)
        target = part.target.padded(members, length, BEGIN, None)
        tokens = part.target.padded(members, length, None, END)
        # A row without a sentence has an end to look at, and nothing to predict.
        tokens[torch.from_numpy(members == NOBODY)] = PAD
        count = float((tokens != PAD).sum())
        inputs = {"source": self._moved(source), "target": self._moved(target)}
        return Batch(inputs, Targets(self._moved(tokens), count))

    def _moved(self, tensor: Tensor) -> Tensor:
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def load_pairs(settings: TranslationData) -> SentencePairs:
    """Read the text, learn the subwords from its training part, and encode all parts."""
    texts, notes = read_parts(settings)
    train = texts["train"]
    subwords = train_subwords((text for side in train for text in side), settings.vocabulary)
    parts = {
        part: Part(pairs, Ragged.of(subwords, pairs.source), Ragged.of(subwords, pairs.target))
        for part, pairs in texts.items()
    }
    parts["train"], dropped = _without_long(parts["train"], settings.longest)
    if dropped:
        notes.append(
            f"data.longest: {dropped} of {len(train.source)} training pairs left out, since they have more than "
            f"{settings.longest} subwords in a language"
        )
    checksums = {part: _checksum(found) for part, found in parts.items()}
    return SentencePairs(settings=settings, subwords=subwords, parts=parts, checksums=checksums, notes=tuple(notes))


def _without_long(part: Part, longest: int) -> tuple[Part, int]:
    """The part without pairs that have too many subwords, and how many these are."""
    kept = np.flatnonzero(part.lengths - 1 <= longest)
    dropped = len(part.texts.source) - len(kept)
    if not len(kept):
        raise ArgumentError(f"data.longest: expected training pairs of at most {longest} subwords, found none")
    if not dropped:
        return part, 0
    texts = Pairs(*([side[place] for place in kept.tolist()] for side in part.texts))
    return Part(texts, part.source.chosen(kept), part.target.chosen(kept)), dropped


def _checksum(part: Part) -> str:
    digest = hashlib.sha256()
    arrays: tuple[NDArray[Any], ...] = (part.source.flat, part.source.starts, part.target.flat, part.target.starts)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).astype("<i8").tobytes())
    # References that differ only in what subwords cannot hold would be scored differently.
    for side in part.texts:
        digest.update("\n".join(side).encode())
    return digest.hexdigest()
