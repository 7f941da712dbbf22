"""Beam search: greedy with a beam of one, the same with and without a cache, and what an exhaustive search finds."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from attentiondrop.experiments.tasks.text.subwords import BEGIN, END, PAD
from attentiondrop.experiments.tasks.translation.beam_search import beam_search
from attentiondrop.experiments.tasks.translation.encoder_decoder import Cache, EncoderDecoder

VOCABULARY = 6


def small_model(vocabulary: int = VOCABULARY, pre: bool = False, seed: int = 0) -> EncoderDecoder:
    """Random weights, larger than usual, so that probabilities differ."""
    torch.manual_seed(seed)
    model = EncoderDecoder(vocabulary, 2, 16, 16, 2, pre=pre).double().eval()
    with torch.no_grad():
        model.embedding.weight.normal_(std=0.8)
    return model


def sources(*lengths: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    torch.manual_seed(1)
    found = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        found[row, :length] = torch.randint(3, vocabulary, (length,))
        found[row, length - 1] = END
    return found


@torch.no_grad()
def log_probabilities(model: EncoderDecoder, source: torch.Tensor, words: list[int]) -> torch.Tensor:
    """Of the word after `words`, for one source without padding."""
    return model(source[None], torch.tensor([[BEGIN, *words]]))[0, -1].float().log_softmax(-1)


def score(model: EncoderDecoder, source: torch.Tensor, words: tuple[int, ...], penalty: float) -> float:
    with torch.no_grad():
        logs = model(source[None], torch.tensor([[BEGIN, *words]]))[0].float().log_softmax(-1)
    total = logs[range(len(words) + 1), [*words, END]].sum().item()
    return total / (len(words) + 1) ** penalty


def greedy(model: EncoderDecoder, source: torch.Tensor, limit: int) -> list[int]:
    words: list[int] = []
    while len(words) + 1 < limit:
        logs = log_probabilities(model, source, words)
        logs[[PAD, BEGIN]] = -math.inf
        if (word := int(logs.argmax())) == END:
            break
        words.append(word)
    return words


def plain(source: torch.Tensor) -> torch.Tensor:
    return source[source != PAD]


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_of_one_is_greedy_search(penalty: float) -> None:
    for seed in range(4):
        model, source = small_model(12, seed=seed), sources(3, 6, 2, 5, vocabulary=12)
        limits = [9, 7, 3, 8]
        found = beam_search(model, source, limits, 1, penalty)
        expected = [greedy(model, plain(row), limit) for row, limit in zip(source, limits, strict=True)]
        assert [each.tokens for each in found] == expected
        for each, row in zip(found, source, strict=True):
            assert each.score == pytest.approx(score(model, plain(row), tuple(each.tokens), penalty), rel=1e-5)


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize("beam", [1, 3])
def test_the_cached_decoder_is_the_uncached_one(beam: int, pre: bool) -> None:
    model, source = small_model(12, pre), sources(3, 6, 2, vocabulary=12)
    cached, uncached = (beam_search(model, source, [8, 8, 8], beam, 0.6, cached=way) for way in (True, False))
    assert [each.tokens for each in cached] == [each.tokens for each in uncached]
    assert [each.score for each in cached] == pytest.approx([each.score for each in uncached], rel=1e-6)
    # Step by step, in double precision.
    target = torch.randint(3, 12, (3, 5))
    memory, mask = model.encode(source)
    cache = Cache.empty(2)
    steps = torch.stack([model.step(word, memory, mask, cache) for word in target.T], 1)
    torch.testing.assert_close(steps, model(source, target), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_wide_beam_finds_the_best_of_all_sentences(penalty: float) -> None:
    """The vocabulary has three words, so there are 1 + 3 + 9 + 27 sentences of at most three words."""
    source, limits = sources(4, 2), [4, 3]
    for seed in range(2):
        model = small_model(seed=seed)
        found = beam_search(model, source, limits, 64, penalty)
        for each, row, limit in zip(found, source, limits, strict=True):
            every = [
                words for length in range(limit) for words in itertools.product(range(3, VOCABULARY), repeat=length)
            ]
            scores = {words: score(model, plain(row), words, penalty) for words in every}
            best = max(scores, key=scores.__getitem__)
            assert tuple(each.tokens) == best
            assert each.score == pytest.approx(scores[best], rel=1e-5)


def written_out(model: EncoderDecoder, source: torch.Tensor, limit: int, beam: int, penalty: float):
    """The same search for one sentence, with lists."""
    begun: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, limit + 1):
        candidates = []
        for total, words in begun:
            logs = log_probabilities(model, source, list(words)).tolist()
            for word in range(len(logs)):
                if word not in (PAD, BEGIN) and (length < limit or word == END):
                    candidates.append((total + logs[word], (*words, word)))
        candidates.sort(reverse=True)
        finished += [(total / length**penalty, words[:-1]) for total, words in candidates[:beam] if words[-1] == END]
        begun = [each for each in candidates[: 2 * beam] if each[1][-1] != END][:beam]
        if len(finished) >= beam or not begun:
            break
    return max(finished)


@pytest.mark.parametrize("beam", [2, 4])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_narrow_beam_finds_what_the_written_out_search_finds(beam: int, penalty: float) -> None:
    source, limits = sources(5, 3, 6, 2, vocabulary=12), [7, 6, 7, 4]
    for seed in range(3):
        model = small_model(12, seed=seed)
        found = beam_search(model, source, limits, beam, penalty)
        for each, row, limit in zip(found, source, limits, strict=True):
            expected, words = written_out(model, plain(row), limit, beam, penalty)
            assert (tuple(each.tokens), each.score) == (words, pytest.approx(expected, rel=1e-5))


def test_a_sentence_at_its_limit_must_end() -> None:
    model, source = small_model(12), sources(3, 5, vocabulary=12)
    for limit in (1, 2, 4):
        assert all(len(each.tokens) < limit for each in beam_search(model, source, [limit, limit], 3, 0.0))
    assert [each.tokens for each in beam_search(model, source, [1, 1], 2, 1.0)] == [[], []]
