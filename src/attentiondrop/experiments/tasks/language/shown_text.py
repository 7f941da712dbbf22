"""What a report shows of a language model: text that it continues, and its attention for one sentence."""

from __future__ import annotations

from typing import Any

import torch

from ....specs import Spec
from ..eval_mode import evaluating
from ..exhibits import Examples, Exhibits
from ..shown_attention import attention_map
from .no_cache import WITHOUT_CACHE
from .token_data import TokenData

#: How many texts are continued, and at most how many tokens a picture shows.
_TEXTS, _SHOWN = 4, 24


def exhibits(model: Any, data: TokenData, spec: Spec | None) -> Exhibits:
    """Continuations of validation text, always with the likeliest token, and a map of the last layer."""
    tokens = data.sentence("validation", _SHOWN)
    texts = data.vocabulary.texts(tokens[0].tolist())
    title = "Self-attention of the last layer"
    shown = attention_map(title, model, {"input_ids": tokens, **WITHOUT_CACHE}, spec, texts, texts)
    return Exhibits((_continued(model, data),), (shown,))


@torch.no_grad()
def _continued(model: Any, data: TokenData) -> Examples:
    """Windows of the text, and what the model makes of their first halves."""
    half = data.block // 2
    stream = data.tokens["validation"].long()
    starts = range(0, len(stream) - data.block, max(1, (len(stream) - data.block) // _TEXTS))
    rows = []
    with evaluating(model):
        for start in list(starts)[:_TEXTS]:
            window = stream[start : start + data.block]
            made = model.generate(
                window[None, :half], max_new_tokens=data.block - half, do_sample=False, use_cache=True, pad_token_id=0
            )
            parts = (window[:half], window[half:], made[0, half:])
            rows.append(tuple(data.vocabulary.decode(part.tolist()) for part in parts))
    return Examples("Text that the model continues", ("Beginning", "Text", "Continuation"), tuple(rows))
