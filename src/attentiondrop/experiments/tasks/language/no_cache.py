"""A cache of keys and values that keeps nothing. Importing this loads transformers.

Without a cache, transformers looks through the position numbers of every batch for packed documents. It reads them from
the device, which no captured step may do; in a compiled model it gives up instead, and builds a mask of all pairs of
tokens. With a cache it does neither: our blocks of text are never packed, and attention is simply causal.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Cache


class NoCache(Cache):  # type: ignore[misc]
    """Returns the keys and values of the present call."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """What there is to attend to: the present keys and values."""
        return keys, values

    def get_seq_length(self, *args: Any) -> int:
        """How many tokens came before: none."""
        return 0

    def get_query_offset(self, *args: Any) -> int:
        """Where the present tokens begin."""
        return 0

    def get_mask_sizes(self, queries: Any, *args: Any) -> tuple[int, int]:
        """The number of keys and the first of them. Older releases pass the positions, newer ones their number."""
        return queries if isinstance(queries, int) else len(queries), 0


#: Arguments for every call of a model. One object, since captured steps compare them.
WITHOUT_CACHE: dict[str, Any] = {"past_key_values": NoCache(), "use_cache": False}
