"""Scores on given translations by their definitions, and translations in the order of the part."""

from __future__ import annotations

import math

import pytest
import torch

from attentiondrop.experiments.tasks.registry import find_task
from attentiondrop.experiments.tasks.text.subwords import END
from attentiondrop.experiments.tasks.translation.beam_search import beam_search
from attentiondrop.experiments.tasks.translation.encoder_decoder import EncoderDecoder
from attentiondrop.experiments.tasks.translation.sentence_pairs import SentencePairs, load_pairs
from attentiondrop.experiments.tasks.translation.translating import teacher_scores, translate
from attentiondrop.experiments.tasks.translation.translation_settings import SearchSettings, TranslationData

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def data() -> SentencePairs:
    return load_pairs(TranslationData(sentences=100, target="xx", vocabulary=300))


@pytest.fixture(scope="module")
def model(data: SentencePairs) -> EncoderDecoder:
    """In training mode, with dropout: evaluation must switch it off, and leave the mode as it was."""
    torch.manual_seed(0)
    net = EncoderDecoder(len(data.subwords), 1, 16, 16, 2, dropout=0.5).train()
    torch.nn.init.normal_(net.embedding.weight, std=0.5)
    return net


def test_scores_are_those_of_each_subword_of_each_sentence_alone(data: SentencePairs, model: EncoderDecoder) -> None:
    losses, right = list[float](), list[bool]()
    model.eval()
    for number in range(data.counts["test"]):
        source, target = data.sentence("test", number)
        with torch.no_grad():
            logs = model(source, target)[0].log_softmax(-1)
        for place, token in enumerate([*target[0, 1:].tolist(), END]):
            losses.append(-logs[place, token].item())
            right.append(logs[place].argmax().item() == token)
    found = teacher_scores(model.train(), data, "test", 6, None)
    mean = sum(losses) / len(losses)
    assert found["nll"] == pytest.approx(mean, rel=1e-5) and model.training
    assert found["perplexity"] == pytest.approx(math.exp(mean), rel=1e-4)
    assert found["accuracy"] == sum(right) / len(right)


def test_translations_are_those_of_each_sentence_alone_and_in_order(data: SentencePairs, model: EncoderDecoder) -> None:
    heard = list[tuple[int, int]]()
    search = SearchSettings(batch_size=4, beam=2, length_factor=1.5, length_extra=2)
    found = translate(model, data, "test", search, on_batch=lambda done, total: heard.append((done, total)))
    count = data.counts["test"]
    batches = math.ceil(count / 4)
    assert heard == [(done, batches) for done in range(1, batches + 1)] and model.training
    model.eval()
    for number in range(count):
        source, _ = data.sentence("test", number)
        limit = math.ceil(1.5 * (source.shape[1] - 1)) + 2  # without the END of the source
        (best,) = beam_search(model, source, [limit], 2, search.length_penalty)
        assert data.subwords.decode([best.tokens]) == [found[number]]
    model.train()


def test_what_a_report_says_of_the_sentences() -> None:
    special = find_task("translation").special
    assert special({"lowercase": True, "limit": 9}) == ["text in lower case", "at most 9 pairs of each part"]
    assert special({"lowercase": False, "limit": None}) == [] == special({})
