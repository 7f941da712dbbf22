"""One call of `attention`, as every path takes it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .blocks import checked_blocks
from .finite_masks import warn_of_finite_mask
from .inputs import Inputs, Options
from .leaves import Active
from .visibility import Visibility, checked_window, compact_form, mix_rows, of_window, split


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
        """The same call with its mask in the most compact form, if a regulariser depends on the form.

        A blur on a fused path does: then `look` is True. So does a blur along the queries, which is an error where rows
        see different keys.
        """
        mixed = mix_rows(self.leaves)
        # Where there is a window, or blocks, no form of the rest of the mask would help.
        look = look and self.visibility.pairs is not None and not self.visibility.is_local()
        if not mixed and not look:
            return self
        return self._replace(visibility=compact_form(self.visibility, self.inputs.shape.rows, mixed))


def make_call(inputs: Inputs, leaves: list[Active], options: Options, seed: Tensor | None) -> Call:
    """The call of these inputs and regularisers. Nobody has looked at the values of its mask yet."""
    visible, mask_bias = split(inputs.mask)
    if leaves and inputs.mask is not None:
        warn_of_finite_mask(inputs.mask)
    bias = inputs.bias if mask_bias is None else mask_bias
    if inputs.bias is not None and mask_bias is not None:
        # A sum in 16 bits would be rounded, or overflow, before any logit is added to it.
        bias = inputs.bias.to(inputs.compute_dtype) + mask_bias.to(inputs.compute_dtype)
    shape = inputs.shape
    visibility = of_window(checked_window(options.window), options.is_causal, shape.rows, shape.columns)
    visibility = visibility._replace(pairs=visible, blocks=checked_blocks(options.blocks, *shape, inputs.q.device))
    return Call(inputs, leaves, visibility, bias, seed, options.dropout_p, options.softcap, options.sinks)
