"""Generated pairs of sentences, for tests and demonstrations, in an invented language with its own word order."""

from __future__ import annotations

import numpy as np

from ..draw_keys import key
from ..text.aligned_files import Pairs

_NOUNS = ("dog", "cat", "bird", "house", "river", "child", "teacher", "garden", "window", "mountain")
_ADJECTIVES = ("small", "red", "old", "happy", "quiet", "wooden", "bright")
_VERBS = ("sees", "finds", "likes", "follows", "paints", "remembers")
_PLACES = ("here", "there", "outside", "today", "again")
_TRANSLATED = {
    "dog": "runko",
    "cat": "mirta",
    "bird": "peelo",
    "house": "domira",
    "river": "valuno",
    "child": "tiko",
    "teacher": "lernato",
    "garden": "florisa",
    "window": "luzetta",
    "mountain": "grandopa",
    "small": "pinu",
    "red": "rubal",
    "old": "vekku",
    "happy": "jojul",
    "quiet": "silu",
    "wooden": "lignal",
    "bright": "klaru",
    "sees": "vidas",
    "finds": "trovas",
    "likes": "amas",
    "follows": "sekvas",
    "paints": "koloras",
    "remembers": "memoras",
    "here": "hiku",
    "there": "tiku",
    "outside": "ekstu",
    "today": "hodu",
    "again": "refu",
}


def generate(count: int, seed: int) -> dict[str, Pairs]:
    """Training, validation and test pairs: `count` of the first, a tenth of that of the others, at least 8.

    No sentence is in two parts.
    """
    sizes = {"train": count, "validation": max(8, count // 10), "test": max(8, count // 10)}
    rng = np.random.default_rng(key("toy sentences", seed))
    seen: dict[str, str] = {}
    while len(seen) < sum(sizes.values()):
        source, target = _pair(rng)
        seen.setdefault(source, target)
    pairs, parts, start = list(seen.items()), {}, 0
    for part, size in sizes.items():
        chosen = pairs[start : start + size]
        parts[part] = Pairs([source for source, _ in chosen], [target for _, target in chosen])
        start += size
    return parts


def _pair(rng: np.random.Generator) -> tuple[str, str]:
    """A sentence and its translation: articles vanish, adjectives follow their nouns, the verb comes last."""
    subject, subject_there = _phrase(rng)
    thing, thing_there = _phrase(rng)
    verb = str(rng.choice(_VERBS))
    place = str(rng.choice(_PLACES)) if rng.random() < 0.4 else None
    end = "?" if rng.random() < 0.2 else "."
    here = [*subject, verb, *thing, *([place] if place else [])]
    there = [*([_TRANSLATED[place]] if place else []), *subject_there, *thing_there, _TRANSLATED[verb]]
    return " ".join(here) + end, " ".join([*(["chu"] if end == "?" else []), *there]) + end


def _phrase(rng: np.random.Generator) -> tuple[list[str], list[str]]:
    adjectives = [str(word) for word in rng.choice(_ADJECTIVES, size=rng.integers(0, 3), replace=False)]
    noun = str(rng.choice(_NOUNS))
    article = str(rng.choice(("the", "a")))
    translated = [_TRANSLATED[noun], *(_TRANSLATED[word] for word in adjectives)]
    return [article, *adjectives, noun], translated
