"""The names of folders for methods: those of today, and those that older versions gave."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator

_SLUG_LENGTH = 100
#: A whole number in a field that holds numbers with a point.
_WHOLE = re.compile(r"(=-?\d+)\.0(?=[,)])")


def slug(text: str) -> str:
    """The text of a method as a name of a folder that needs no quotes. A nested or long text gets a checksum.

    >>> slug("dropout(p=0.1)+hard(p=0.1,k=5)")
    'dropout_p=0.1+hard_p=0.1_k=5'
    """
    short = re.sub(r"[^\w.=+-]+", "_", text.replace(")", "")).strip("_")
    nested = re.search(r"\([^)]*\(", text) is not None
    if nested or len(short) > _SLUG_LENGTH:
        short = f"{short[:_SLUG_LENGTH]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return short


def older_slugs(comparators: str, text: str) -> Iterator[str]:
    """The other names that the folder of a method may have: fields of comparators held `1` as the user wrote it.

    `comparators` is the beginning of `text` that describes them.

    >>> list(older_slugs("r-drop(weight=1.0,p=0.0)", "r-drop(weight=1.0,p=0.0)+blur(sigma_max=2.0)"))[:2]
    ['r-drop_weight=1.0_p=0+blur_sigma_max=2.0', 'r-drop_weight=1_p=0.0+blur_sigma_max=2.0']
    """
    pieces = _WHOLE.split(comparators)  # what is between whole numbers, and the numbers, in turn
    for endings in itertools.islice(itertools.product((".0", ""), repeat=len(pieces) // 2), 1, None):
        rest = zip(pieces[1::2], endings, pieces[2::2], strict=True)
        older = pieces[0] + "".join(number + ending + after for number, ending, after in rest)
        yield slug(older + text.removeprefix(comparators))
