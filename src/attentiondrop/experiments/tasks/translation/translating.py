"""Evaluate a model: its loss on given translations, and the translations that it finds itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torch.nn.functional import cross_entropy

from ..interface import Judgement, OnBatch
from ..text.subwords import PAD
from .beam_search import beam_search
from .encoder_decoder import MOST_POSITIONS, EncoderDecoder
from .sentence_pairs import SentencePairs
from .text_scores import score_texts
from .translation_settings import SearchSettings


@torch.no_grad()
def teacher_scores(
    model: nn.Module, data: SentencePairs, part: str, batch_size: int, accelerator: Accelerator | None
) -> dict[str, float]:
    """Loss, perplexity and share of right subwords, each given all earlier subwords of the reference."""
    rank, world = _place(accelerator)
    # A model is compiled for training. In eval mode or with another shape it would be compiled again.
    call = model.forward if getattr(model, "_compiled_call_impl", None) is not None else model
    was, found = model.training, []
    model.eval()
    for members, (inputs, targets) in data.numbered_batches(part, batch_size, rank=rank, world=world):
        logits = call(**inputs).float()
        total = cross_entropy(logits.flatten(0, 1), targets.tokens.flatten(), ignore_index=PAD, reduction="sum")
        right = ((logits.argmax(-1) == targets.tokens) & (targets.tokens != PAD)).sum()
        if len(members):
            found.append((total.item(), float(right), targets.counted))
    model.train(was)
    # An exact sum does not depend on the order, so it is the same with any number of processes.
    loss, hits, count = (math.fsum(column) for column in zip(*_gathered(found, accelerator), strict=True))
    return {"nll": loss / count, "perplexity": math.exp(min(loss / count, 700.0)), "accuracy": hits / count}


def translate(
    model: EncoderDecoder,
    data: SentencePairs,
    part: str,
    settings: SearchSettings,
    accelerator: Accelerator | None = None,
    on_batch: OnBatch | None = None,
) -> list[str]:
    """The translation of every source sentence of a part, in order."""
    rank, world = _place(accelerator)
    was, found = model.training, []
    model.eval()
    batches = data.numbered_batches(part, settings.batch_size, rank=rank, world=world)
    mine = [(members, batch) for members, batch in batches if len(members)]
    lengths = data.parts[part].source.lengths
    for done, (members, (inputs, _)) in enumerate(mine, start=1):
        limits = [_limit(int(length), settings) for length in lengths[members]]
        best = beam_search(model, inputs["source"], limits, settings.beam, settings.length_penalty)
        texts = data.subwords.decode([each.tokens for each in best])
        found += list(zip(members.tolist(), texts, strict=True))
        if on_batch is not None:
            on_batch(done, len(mine))
    model.train(was)
    return [text for _, text in sorted(_gathered(found, accelerator))]


def _limit(length: int, settings: SearchSettings) -> int:
    """The most subwords of a translation, END included."""
    return min(MOST_POSITIONS, math.ceil(settings.length_factor * length) + settings.length_extra)


def scores_of_texts(
    model: EncoderDecoder,
    data: SentencePairs,
    part: str,
    settings: SearchSettings,
    accelerator: Accelerator | None,
    on_batch: OnBatch | None = None,
) -> tuple[dict[str, float], dict[str, str]]:
    """Every metric on a part, by name, and the signatures of those that have one."""
    texts = translate(model, data, part, settings, accelerator, on_batch)
    found = score_texts(texts, data.parts[part].texts.target, data.settings.target, data.settings.lowercase)
    scores = {"bleu": found.bleu, "chrf": found.chrf, "tokenised_bleu": found.tokenised_bleu}
    return scores | teacher_scores(model, data, part, settings.batch_size, accelerator), found.signatures


def judge(
    model: EncoderDecoder,
    data: SentencePairs,
    settings: SearchSettings,
    accelerator: Accelerator | None = None,
    on_batch: OnBatch | None = None,
) -> Judgement:
    """All scores on the validation part and, if `data` holds it, on the test part."""
    validation, signatures = scores_of_texts(model, data, "validation", settings, accelerator, on_batch)
    if "test" not in data.parts:
        return Judgement(validation, signatures=signatures)
    test, _ = scores_of_texts(model, data, "test", settings, accelerator, on_batch)
    return Judgement(validation, test, signatures=signatures)


def _place(accelerator: Accelerator | None) -> tuple[int, int]:
    return (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)


def _gathered(found: list[Any], accelerator: Accelerator | None) -> list[Any]:
    """The lists of all processes as one."""
    return found if accelerator is None or accelerator.num_processes == 1 else gather_object(found)
