"""Refuse attention that is sharded over the sequence: a process then sees only some of the queries or keys.

Which logits are the largest of a row, and which are neighbours, cannot be told from a part of them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import BackendError

#: Where `torch.distributed.tensor.experimental.context_parallel` defines what it puts in the place of SDPA.
_CONTEXT_PARALLEL = "torch.distributed.tensor.experimental"
_REFUSED = "perturbed attention needs whole rows: expected sequences that are not sharded, received {}"


def refuse_sharded_sequences(query: Tensor, key: Tensor) -> None:
    """Raise `BackendError` if queries or keys [..., length, head size] are a part of a longer sequence."""
    for name, x in (("query", query), ("key", key)):
        for placement in getattr(x, "placements", ()):  # a DTensor; not imported, since that takes long
            if getattr(placement, "dim", None) in (x.ndim - 2, -2):
                raise BackendError(_REFUSED.format(f"a {name} with the placement {placement!r}"))
    if not torch.compiler.is_compiling():
        refuse_context_parallel()


def refuse_context_parallel() -> None:
    """Raise `BackendError` within torch's `context_parallel`, where every sequence is a part of a longer one."""
    module = getattr(F.scaled_dot_product_attention, "__module__", None) or ""
    if module.startswith(_CONTEXT_PARALLEL):
        raise BackendError(_REFUSED.format("a call within torch's context_parallel"))
