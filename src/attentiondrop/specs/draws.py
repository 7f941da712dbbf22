"""What a regulariser draws in one call, in one description for all frameworks."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Dimension = Literal["batch", "heads", "rows", "keys"]


class Draws(NamedTuple):
    """Random numbers over the dimensions `over` of the logits [batch, heads, rows, keys].

    `"uniform"` draws are independent in [0, 1), `"normal"` ones are independent standard normals. `"stratified"` ones
    are uniforms spread evenly over the heads. They belong to the `ranks` largest logits of a row, not to its keys.

    >>> Draws("normal", ("batch", "heads")).shape(batch=2, heads=4, rows=9, keys=9)
    (2, 4)
    """

    distribution: Literal["uniform", "normal", "stratified"]
    over: tuple[Dimension, ...]
    ranks: int = 0

    def shape(self, batch: Any, heads: Any, rows: Any, keys: Any) -> tuple[Any, ...]:
        """The shape of the draws for logits of the given shape."""
        if self.distribution == "stratified":
            return batch, heads, rows, min(self.ranks, keys)
        sizes = {"batch": batch, "heads": heads, "rows": rows, "keys": keys}
        return tuple(sizes[dimension] for dimension in self.over)


#: One number for each logit.
EVERY_LOGIT: tuple[Dimension, ...] = ("batch", "heads", "rows", "keys")
