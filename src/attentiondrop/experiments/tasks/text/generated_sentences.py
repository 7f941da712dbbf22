"""Generated text to try tasks on without any file: short sentences whose end depends on their beginning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_COLOURS = ("red", "blue", "green", "white")
_ANIMALS = ("cat", "dog", "bird", "fox", "cow")
_VERBS = ("sees", "hears", "follows", "meets")


def generated_text(sentences: int, seed: int) -> str:
    """Sentences, one in each line. The end of a sentence repeats the colour of its subject.

    >>> print(generated_text(2, 0), end="")
    the white fox follows the blue dog because it is white .
    the red cat sees the red cow because it is red .
    """
    one, lines = _chooser(seed), []
    for _ in range(sentences):
        colour = one(_COLOURS)
        lines.append(
            f"the {colour} {one(_ANIMALS)} {one(_VERBS)} the {one(_COLOURS)} {one(_ANIMALS)} because it is {colour} .\n"
        )
    return "".join(lines)


def generated_labels(sentences: int, seed: int) -> list[tuple[str, str]]:
    """Labels and sentences. The label is the animal that acts.

    >>> generated_labels(2, 0)
    [('fox', 'the white fox follows the blue dog .'), ('cat', 'the red cat sees the red cow .')]
    """
    one, found = _chooser(seed), []
    for _ in range(sentences):
        colour, actor = one(_COLOURS), one(_ANIMALS)
        found.append((actor, f"the {colour} {actor} {one(_VERBS)} the {one(_COLOURS)} {one(_ANIMALS)} ."))
    return found


def _chooser(seed: int) -> Callable[[tuple[str, ...]], str]:
    generator = np.random.default_rng(seed)
    return lambda words: words[int(generator.integers(len(words)))]
