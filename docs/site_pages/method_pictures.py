"""What each method does, shown on small examples by the code of the method itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from attentiondrop import oracle_draws, reference
from attentiondrop.experiments.methods import COMPARATORS
from attentiondrop.experiments.methods.catalogue import catalogue
from attentiondrop.experiments.methods.groups import groups
from attentiondrop.experiments.methods.other_attention import OtherAttention, SparseAttention
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.pictures import example_heads
from attentiondrop.specs import Compose, Spec

from . import comparator_pictures
from .drawing import Picture, card, cards

_TOKENS, _HEADS, _MAP = 16, 4, (1, 4, 16, 16)


def of_group(group: str) -> Callable[[], str]:
    """A function that draws the methods of a group. As in the tables, one in two groups is drawn in the first."""
    before: set[str] = set()
    for name, methods in groups().items():
        if name == group:
            return lambda: drawn(*(method for method in methods if method not in before))
        before.update(methods)
    raise KeyError(group)


def drawn(*names: str) -> str:
    """The pictures of some methods. A method that perturbs nothing has none."""
    pictures = {one.settings[0]: picture_of(one.settings[0]) for one in catalogue(names)}
    return cards([card(text, picture) for text, picture in pictures.items() if picture is not None])


def picture_of(text: str) -> Picture | None:
    """The picture of a method, None if it perturbs nothing. A method that nothing here can draw is an error."""
    method = read_method(text)
    if method.attached is not None:
        return _attention(method.attached)
    (part,) = method.comparators or (COMPARATORS["none"](),)
    if part.name in ("none", "longer"):
        return None
    torch.manual_seed(0)
    if isinstance(part, OtherAttention | SparseAttention):
        return _other_attention(part)
    return comparator_pictures.PICTURES[part.name](part)


def _attention(spec: Spec) -> Picture:
    """A map of attention, and the row that changes most. A rate that changes is shown at its largest."""
    q, k = example_heads(_TOKENS, _HEADS, np.random.default_rng(0))
    before = reference.attention(q, k, k).weights[0]
    largest = Compose([_at_most(part) for part in spec.leaves()])
    # At small rates, a call may change nothing in four heads: take the first one that shows something.
    for seed in range(100):
        draws = oracle_draws.sample(largest, _MAP, np.random.default_rng(seed))
        after = reference.attention(q, k, k, largest, draws).weights[0]
        change = np.abs(after - before)
        if change.max() > 0.02:
            break
    head = int(change.max(axis=(1, 2)).argmax())
    row = int(change[head].max(axis=1).argmax())
    about = f"Attention of one head, queries down, keys across. Bars: query {row}."
    return Picture(before[head], after[head], about, row=row)


def _at_most(spec: Spec) -> Spec:
    """The spec with the largest value of each schedule."""
    return dataclasses.replace(spec, **{name: max(rate.extremes()) for name, rate in spec.scheduled().items()})


def _other_attention(part: OtherAttention | SparseAttention) -> Picture:
    q, k = (torch.from_numpy(one).float() for one in example_heads(_TOKENS, _HEADS, np.random.default_rng(0)))
    logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    before = logits.softmax(-1)
    if isinstance(part, SparseAttention):
        after = logits.masked_fill(~part.visible(_TOKENS, 1), float("-inf")).softmax(-1)
    else:
        after = part.weigh(logits, part.learned(_HEADS), 1)
    changes = not torch.equal(before, after)
    row = int((after - before).abs()[0, 0].amax(-1).argmax())
    about = f"Attention of one head, queries down, keys across; the first token is a class token. Bars: query {row}."
    begins = "Attention of one head before training: the new parameters begin where they change nothing."
    return Picture(before[0, 0], after[0, 0], about if changes else begins, ("softmax", part.name), row)
