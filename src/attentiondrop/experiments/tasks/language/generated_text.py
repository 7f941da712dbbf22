"""Generated text to try the task on without any file: short sentences whose last word depends on the first ones."""

from __future__ import annotations

import numpy as np

_COLOURS = ("red", "blue", "green", "white")
_ANIMALS = ("cat", "dog", "bird", "fox", "cow")
_VERBS = ("sees", "hears", "follows", "meets")


def generated_text(sentences: int, seed: int) -> str:
    """Sentences, one in each line. The end of a sentence repeats the colour of its subject.

    >>> print(generated_text(2, 0), end="")
    the white dog hears the green fox because it is white .
    the red cat hears the red bird because it is red .
    """
    generator = np.random.default_rng(seed)

    def one(words: tuple[str, ...]) -> str:
        return words[int(generator.integers(len(words)))]

    lines = []
    for _ in range(sentences):
        colour = one(_COLOURS)
        lines.append(
            f"the {colour} {one(_ANIMALS)} {one(_VERBS)} the {one(_COLOURS)} {one(_ANIMALS)} because it is {colour} .\n"
        )
    return "".join(lines)
