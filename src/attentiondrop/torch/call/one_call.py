"""One call of `attention`, as every path takes it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .inputs import Inputs, Options
from .leaves import Active
from .visibility import Visibility, compact_form, split


class Call(NamedTuple):
    """What one call computes. The mask of `inputs` is taken apart here: into `visibility` and `bias`.

    `bias` is None or the sum of all that is added to the logits, broadcastable to [B, H, N, M]. `seed` is None where
    nothing is drawn.
    """

    inputs: Inputs
    leaves: list[Active]
    visibility: Visibility
    bias: Tensor | None
    seed: Tensor | None
    dropout_p: float
    softcap: float | None
    sinks: Tensor | None

    def with_compact_mask(self, look: bool) -> Call:
        """The same call with its mask in the form that `compact_form` finds."""
        return self._replace(visibility=compact_form(self.visibility, self.leaves, self.inputs.shape.rows, look))


def make_call(inputs: Inputs, leaves: list[Active], options: Options, seed: Tensor | None) -> Call:
    """The call of these inputs and regularisers. Nobody has looked at the values of its mask yet."""
    visible, mask_bias = split(inputs.mask)
    bias = inputs.bias if mask_bias is None else mask_bias
    if inputs.bias is not None and mask_bias is not None:
        # A sum in 16 bits would be rounded, or overflow, before any logit is added to it.
        bias = inputs.bias.to(inputs.compute_dtype) + mask_bias.to(inputs.compute_dtype)
    visibility = Visibility(options.is_causal, pairs=visible)
    return Call(inputs, leaves, visibility, bias, seed, options.dropout_p, options.softcap, options.sinks)
