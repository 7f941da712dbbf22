"""Text as one long row of tokens for each part, cut into windows of one length."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ....errors import ArgumentError, bad_argument
from ....validation import integer, one_of
from ..draw_keys import key
from ..interface import Batch
from .vocabulary import Vocabulary

#: The target of positions that are not scored.
IGNORED = -100


@dataclass(frozen=True, eq=False)
class TokenData:
    """Tokens in three parts. All batches have windows of `block` tokens; the target of each token is the next one.

    In training, every epoch cuts the text at other places: the first window begins at a token that is drawn, and the
    order of the windows is drawn, too. Both depend only on (seed, epoch).
    """

    vocabulary: Vocabulary
    #: Part -> tokens [N], int32.
    tokens: dict[str, Tensor]
    #: Part -> bytes of its text in UTF-8.
    bytes: dict[str, int]
    block: int
    #: How far apart the windows of an evaluation begin.
    stride: int
    #: Whether the text was generated, so that everybody may see it.
    generated: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        for part, tokens in self.tokens.items():
            least = 2 * self.block if part == "train" else 2
            if len(tokens) < least:
                raise ArgumentError(
                    f"data: expected at least {least} tokens in the {part} part for blocks of {self.block}, received "
                    f"{len(tokens)}"
                )

    @property
    def words(self) -> str:
        """A description of an example, for error messages."""
        return f"blocks of {self.block} tokens"

    @property
    def counts(self) -> dict[str, int]:
        """Part -> number of windows."""
        return {part: self._windows(part) for part in self.tokens}

    @property
    def checksums(self) -> dict[str, str]:
        """Part -> SHA-256 of tokens and vocabulary."""
        return {part: self._checksum(tokens) for part, tokens in self.tokens.items()}

    def having(self, *parts: str) -> TokenData:
        """The data with only these parts."""
        tokens = {part: self.tokens[part] for part in parts}
        return dataclasses.replace(self, tokens=tokens, bytes={part: self.bytes[part] for part in parts})

    def to(self, device: str | torch.device) -> TokenData:
        """The same data with all tokens on `device`."""
        moved = {part: tokens.to(device) for part, tokens in self.tokens.items()}
        return dataclasses.replace(self, tokens=moved, device=torch.device(device))

    def steps(self, batch_size: int) -> int:
        """The number of batches in an epoch. An incomplete last batch is left out, unless it is the only one."""
        return max(1, self._windows("train") // integer("batch_size", batch_size, 1))

    def train_batches(
        self, *, seed: int, epoch: int, batch_size: int, rank: int = 0, world: int = 1
    ) -> Iterator[Batch]:
        """One epoch of shuffled windows; `batch_size` counts the windows of all ranks."""
        count = self._windows("train")
        size = min(batch_size, count)
        # Gradients are averaged over ranks. That is the gradient of the batch only if all shares are equal.
        if size % world:
            raise bad_argument("batch_size", f"batches that {world} processes share equally", size)
        generator = torch.Generator().manual_seed(key("windows", seed, epoch))
        first = torch.randint(self.block, (), generator=generator)
        starts = (first + self.block * torch.randperm(count, generator=generator)).to(self.device)
        share = size // world
        for step in range(self.steps(batch_size)):
            begin = step * size + rank * share
            window = self._window("train", starts[begin : begin + share])
            yield _batch(window[:, :-1], window[:, 1:])

    def batches(self, part: str, batch_size: int, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """All windows of a part, in order. Every token but the first is the target of exactly one window.

        All ranks get batches of the same shape: what is missing at the end is filled up with windows without targets.
        """
        one_of("part", part, tuple(self.tokens))
        count, length = self._evaluated(part), len(self.tokens[part])
        offsets = torch.arange(self.block, device=self.device)
        for begin in range(0, count, batch_size):
            end = min(count, begin + batch_size)
            share = -(-(end - begin) // world)
            numbers = begin + rank * share + torch.arange(share, device=self.device)
            starts = numbers * self.stride
            window = self._window(part, starts)
            here = starts[:, None] + offsets + 1 < length
            here &= (offsets >= self.block - self.stride) | (numbers[:, None] == 0)
            here &= numbers[:, None] < end
            yield _batch(window[:, :-1], torch.where(here, window[:, 1:], IGNORED))

    def sentence(self, part: str, tokens: int) -> Tensor:
        """The first tokens of a part, [1, at most `tokens`]."""
        return self.tokens[part][None, : min(tokens, self.block)].long()

    def _windows(self, part: str) -> int:
        # In training the first window begins at any of the first `block` tokens.
        return len(self.tokens[part]) // self.block - 1 if part == "train" else self._evaluated(part)

    def _evaluated(self, part: str) -> int:
        beyond = max(0, len(self.tokens[part]) - 1 - self.block)
        return 1 + -(-beyond // self.stride)

    def _window(self, part: str, starts: Tensor) -> Tensor:
        """The tokens from each start, one more than a block. Behind the end, the last token is repeated."""
        tokens = self.tokens[part]
        places = starts[:, None] + torch.arange(self.block + 1, device=self.device)
        return tokens[places.clamp_max(len(tokens) - 1)].long()

    def _checksum(self, tokens: Tensor) -> str:
        found = hashlib.sha256(self.vocabulary.checksum.encode())
        found.update(tokens.cpu().numpy().tobytes())
        return found.hexdigest()


def _batch(tokens: Tensor, targets: Tensor) -> Batch:
    from .no_cache import WITHOUT_CACHE

    inputs: dict[str, Any] = {"input_ids": tokens.contiguous(), **WITHOUT_CACHE}
    return Batch(inputs, targets.contiguous())
