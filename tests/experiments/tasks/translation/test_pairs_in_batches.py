"""Batches by subwords: every pair once, few shapes, the same for any number of processes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.tasks.interface import Data
from attentiondrop.experiments.tasks.registry import find_task
from attentiondrop.experiments.tasks.text.subwords import BEGIN, END, PAD
from attentiondrop.experiments.tasks.translation.length_buckets import NOBODY, ROWS, plan, rows, shapes
from attentiondrop.experiments.tasks.translation.sentence_pairs import SentencePairs, load_pairs
from attentiondrop.experiments.tasks.translation.translation_settings import TranslationData

pytest.importorskip("tokenizers")

SIZE = 1024


@pytest.fixture(scope="module")
def data() -> SentencePairs:
    return load_pairs(TranslationData(sentences=203, target="xx", vocabulary=300))


def sentences(batch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The pairs of a batch, without padding, as subwords."""
    found = []
    for source, target, tokens in zip(*batch.inputs.values(), batch.targets.tokens, strict=True):
        ours, before, after = (line[line != PAD].tolist() for line in (source, target, tokens))
        assert ours[-1] == END and before[0] == BEGIN
        if after:
            assert after[-1] == END and before[1:] == after[:-1]
            found.append((tuple(ours[:-1]), tuple(after[:-1])))
        else:
            assert ours == [END] and before == [BEGIN]  # a row that fills the batch up
    return found


def all_pairs(data: SentencePairs, part: str) -> Counter:
    texts = data.parts[part].texts
    return Counter(
        zip(map(tuple, data.subwords.encode(texts.source)), map(tuple, data.subwords.encode(texts.target)), strict=True)
    )


def test_an_epoch_has_every_pair_once_in_few_shapes(data) -> None:
    orders = []
    for epoch in range(2):
        batches = list(data.train_batches(seed=3, epoch=epoch, batch_size=SIZE))
        found = [pair for batch in batches for pair in sentences(batch)]
        assert Counter(found) == all_pairs(data, "train") and len(batches) == data.steps(SIZE)
        seen = Counter(tuple(batch.inputs["source"].shape) for batch in batches)
        assert seen == Counter(shapes(data.parts["train"].lengths, SIZE))
        assert data.padded_lengths(SIZE) == {length for _, length in seen}
        assert len(seen) <= 7 and all(r * n <= SIZE and r % ROWS == 0 and n % 8 == 0 for r, n in seen)
        assert sum(batch.targets.counted for batch in batches) == data.subwords_of_epoch()
        assert all(batch.targets.counted == (batch.targets.tokens != PAD).sum() for batch in batches)
        orders.append(found)
    assert orders[0] != orders[1]
    again = [pair for batch in data.train_batches(seed=3, epoch=1, batch_size=SIZE) for pair in sentences(batch)]
    assert again == orders[1]


def test_the_shares_of_all_processes_are_the_batch(data) -> None:
    shared = [list(data.train_batches(seed=0, epoch=0, batch_size=SIZE, rank=rank, world=4)) for rank in range(4)]
    for whole, *parts in zip(data.train_batches(seed=0, epoch=0, batch_size=SIZE), *shared, strict=True):
        assert torch.equal(whole.targets.tokens, torch.cat([part.targets.tokens for part in parts]))
        assert torch.equal(whole.inputs["source"], torch.cat([part.inputs["source"] for part in parts]))
        assert whole.targets.counted == sum(part.targets.counted for part in parts)
    with pytest.raises(ArgumentError, match="world: expected a divisor of 8, received 3"):
        next(data.train_batches(seed=0, epoch=0, batch_size=SIZE, world=3))


def test_evaluation_sees_every_pair_once_in_whole_batches(data) -> None:
    alone = list(data.numbered_batches("validation", 7))
    assert sorted(np.concatenate([members for members, _ in alone])) == list(range(20))
    found = [list(data.numbered_batches("validation", 7, rank=rank, world=2)) for rank in range(2)]
    assert [len(each) for each in found] == [2, 2] and len(alone) == 3
    (last, repeated) = found[1][1]
    assert len(last) == 0 and len(repeated.targets.tokens) == 7  # nothing left for this rank, which must not wait
    for members, batch in [*found[0], found[1][0]]:
        same = next(other for numbers, other in alone if np.array_equal(numbers, members))
        assert torch.equal(batch.targets.tokens, same.targets.tokens)


def test_lengths_and_rows() -> None:
    lengths = np.array([3, 9, 9, 9, 200])
    batches = plan(lengths, 8 * 224, np.random.default_rng(0))
    assert [(len(each.members), each.length) for each in batches] == [(8, 224)]
    assert sorted(batches[0].members) == [NOBODY] * 3 + [0, 1, 2, 3, 4]
    with pytest.raises(ArgumentError, match=r"training.batch_size: expected at least 448 subwords, 8 sentences of the"):
        rows(56, 447)


def test_split_parts_know_their_counts(data) -> None:
    task = find_task("translation")
    batch = next(iter(data.train_batches(seed=0, epoch=0, batch_size=SIZE)))
    parts = task.split(batch, 4)
    assert sum(task.count(part.targets) for part in parts) == task.count(batch.targets)
    assert all(task.count(part.targets) == (part.targets.tokens != PAD).sum() for part in parts)
    output = torch.randn(*batch.targets.tokens.shape, len(data.subwords))
    total, count = task.loss(output, batch.targets, 0.1)
    chunks = output.chunk(4)
    sums = [task.loss(chunk, part.targets, 0.1)[0] for chunk, part in zip(chunks, parts, strict=True)]
    assert count == batch.targets.counted and sum(sums).item() == pytest.approx(total.item(), rel=1e-5)
    assert task.split(batch, 1)[0] is batch


def test_a_share_without_words_has_no_loss(data) -> None:
    task = find_task("translation")
    batch = next(iter(data.train_batches(seed=0, epoch=0, batch_size=SIZE)))
    nothing = batch.targets._replace(tokens=torch.zeros_like(batch.targets.tokens), counted=0.0)
    total, count = task.loss(torch.randn(*nothing.tokens.shape, 9), nothing, 0.1)
    assert (total / count).item() == 0.0
    assert task.loss(torch.randn(*nothing.tokens.shape, 9), nothing._replace(counted=torch.zeros(())), 0.1)[1] == 1.0


def test_it_is_data(data) -> None:
    parts: Data = data.having("validation").to("cpu")
    assert parts.counts == {"validation": 20} and set(parts.checksums) == {"validation"}
    assert data.words == "pairs of sentences, en to xx" and data.generated
