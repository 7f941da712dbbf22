"""Beam search for many sentences at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..text.subwords import BEGIN, END, PAD
from .encoder_decoder import Cache, EncoderDecoder


class Translation(NamedTuple):
    """Subwords without BEGIN and END, and the score of the search."""

    tokens: list[int]
    score: float


@torch.no_grad()
def beam_search(
    model: EncoderDecoder,
    source: Tensor,
    limits: Sequence[int],
    beam: int,
    length_penalty: float,
    cached: bool = True,
) -> list[Translation]:
    """The best translation of each row of `source` that the search finds.

    In each step, the `beam` best beginnings of a sentence go on. A sentence that ends among the `beam` best is
    finished. The search of a row ends with `beam` finished sentences, or when no beginning can become better than the
    best of them.
    With `beam=1` this is greedy search.

    Args:
        model: in eval mode.
        source: subwords [B, S], padded.
        limits: for each row, the most subwords of its translation, END included. A sentence that reaches it must end.
        beam: how many beginnings are kept.
        length_penalty: a sentence of n subwords, END included, has the score log probability / n ** length_penalty.
        cached: whether the decoder keeps what it computed for earlier positions. It only saves time.
    """
    memory, mask = model.encode(source)
    count, device = len(source), source.device
    # Row b * beam + k is beginning k of sentence b.
    memory, mask = memory.repeat_interleave(beam, 0), mask.repeat_interleave(beam, 0)
    most = torch.tensor(limits, device=device)
    tokens = torch.full((count, beam, 1), BEGIN, device=device)
    logs = torch.full((count, beam), -torch.inf, device=device, dtype=torch.float32)
    logs[:, 0] = 0.0  # all beginnings are equal at first, so one is enough
    best = torch.full((count,), -torch.inf, device=device)
    found = torch.full((count, int(most.max())), PAD, device=device)
    finished = torch.zeros(count, dtype=torch.int64, device=device)
    done = torch.zeros(count, dtype=torch.bool, device=device)
    first = torch.arange(count, device=device)[:, None] * beam
    cache = Cache.empty(len(model.decoder)) if cached else None
    for length in range(1, int(most.max()) + 1):
        if cache is None:
            logits = model.decode(tokens.flatten(0, 1), memory, mask)[:, -1]
        else:
            logits = model.step(tokens[:, :, -1].flatten(), memory, mask, cache)
        totals = logs[:, :, None] + _allowed(logits.float().log_softmax(-1), length >= most, beam)
        vocabulary = totals.shape[-1]
        # At most `beam` of the candidates end, so `beam` of them go on.
        scores, places = totals.flatten(1).topk(min(2 * beam, beam * vocabulary))
        ends = places % vocabulary == END
        # A sentence that ends.
        ending = ends[:, :beam] & scores[:, :beam].isfinite() & ~done[:, None]
        final = scores[:, :beam].masked_fill(~ending, -torch.inf) / length**length_penalty
        score, which = final.max(1)
        parent = places.gather(1, which[:, None])[:, 0] // vocabulary
        better = score > best
        best = torch.where(better, score, best)
        line = torch.full_like(found, PAD)
        line[:, : length - 1] = tokens[torch.arange(count, device=device), parent, 1:]
        found = torch.where(better[:, None], line, found)
        finished += ending.sum(1)
        # Beginnings that go on: the best candidates that do not end, in their order.
        order = torch.argsort(ends.to(torch.int8), dim=1, stable=True)[:, :beam]
        logs, places = scores.gather(1, order), places.gather(1, order)
        logs = logs.masked_fill(ends.gather(1, order), -torch.inf)
        parents = places // vocabulary
        tokens = torch.cat([tokens.gather(1, parents[..., None].expand_as(tokens)), places[..., None] % vocabulary], 2)
        # Scores are negative, so the longest translation would be the best.
        hope = logs.max(1).values / most.float() ** length_penalty
        done |= (finished >= beam) | (length >= most) | (best >= hope)
        if bool(done.all()):
            break
        if cache is not None:
            cache.reorder((first + parents).flatten())
    lines = zip(found.tolist(), best.tolist(), strict=True)
    return [Translation([number for number in line if number != PAD], score) for line, score in lines]


def _allowed(logs: Tensor, must_end: Tensor, beam: int) -> Tensor:
    """Log probabilities [B, beam, V], -inf for what may not follow."""
    logs = logs.unflatten(0, (-1, beam))
    logs[..., [PAD, BEGIN]] = -torch.inf
    others = torch.ones(logs.shape[-1], dtype=torch.bool, device=logs.device)
    others[END] = False
    return logs.masked_fill(must_end[:, None, None] & others, -torch.inf)
