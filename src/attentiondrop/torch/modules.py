"""`AttentionDrop`: logits in, attention weights out. The paper's interface, for hand-written attention layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ShapeError, bad_argument
from ..parsing import parse
from ..specs import Spec
from .call.finite_masks import warn_of_finite_logits, warn_of_finite_mask
from .call.inputs import mask_in_four_dimensions
from .call.leaves import LogitShape
from .call.visibility import Visibility, compact_form, hidden_from_all_rows, is_hidden, mix_rows, split
from .draws import draw_seed
from .eager.attention import perturbed_weights
from .functional import leaves_of


class AttentionDrop(nn.Module):
    """Turn attention logits into weights, perturbed in training and plain softmax in evaluation.

    It has no parameters, no buffers and no state. `DropHead` and `HeadMask` scale whole heads of the weights, which is
    the same as scaling their outputs.

    Args:
        spec: what to do, as a spec or as its text.
        generator: where the seeds come from; the default generator of the device otherwise. Copies (`copy.deepcopy`)
            share it: a layer is often copied to make the other layers, and layers must not draw alike.

    Shape:
        logits [..., H, N, M], or [B, N, M] for one head; -inf (or half of the lowest number) in them hides a key. mask
        (boolean, True: visible, or additive) broadcastable to it; weights like the logits.

    Example:
        >>> import attentiondrop as ad
        >>> drop = AttentionDrop(ad.BlurSmoothing(sigma_max=0.5))
        >>> drop(torch.randn(2, 4, 10, 10)).sum(-1).allclose(torch.ones(2, 4, 10))
        True
    """

    def __init__(self, spec: Spec | str, generator: torch.Generator | None = None) -> None:
        super().__init__()
        spec = parse(spec) if isinstance(spec, str) else spec
        if not isinstance(spec, Spec):
            raise bad_argument("spec", "a spec or its text", spec)
        self.spec = spec
        self.generator = generator

    def __deepcopy__(self, memo: dict[int, Any]) -> AttentionDrop:
        """A copy that shares the generator. With a copy of the generator it would repeat the draws of this module."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy({**self.__dict__, "generator": None, "_compiled_call_impl": None}, memo))
        twin.generator = self.generator
        return twin

    def forward(self, logits: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attention weights in the dtype of `logits`; rows that see no key give zeros."""
        if not logits.is_floating_point():
            raise bad_argument("logits", "a floating-point tensor", logits.dtype)
        if logits.ndim < 3:
            raise ShapeError(f"logits: expected [..., heads, queries, keys], received {list(logits.shape)}")
        # As in `attention`: with four or more dimensions, heads are dimension -3, and all before it is the batch.
        work = logits.unsqueeze(1) if logits.ndim == 3 else logits.flatten(0, -4)
        mask = mask_in_four_dimensions(mask, tuple(logits.shape), "mask")
        visible, bias = split(mask)
        if self.training:
            warn_of_finite_logits(work)
            if mask is not None:
                warn_of_finite_mask(mask)
        # Hand-written layers mask the logits themselves. What they hid, no perturbation may show.
        hidden = is_hidden(work)
        work = work.masked_fill(hidden, 0.0)
        if self.training and any(leaf.mixes_rows for leaf in self.spec.leaves()):
            hidden, work = hidden_from_all_rows(hidden, work)
        visible = ~hidden if visible is None else visible & ~hidden
        work = work.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
        if bias is not None:
            work = work + bias.to(work.dtype)
        shape = LogitShape(*work.shape)
        seed = draw_seed(logits, self.generator) if self.training else None
        leaves = leaves_of(self.spec, seed, work.dtype, shape.heads)
        seen = Visibility(is_causal, pairs=visible)
        if mix_rows(leaves):
            seen = compact_form(seen, shape.rows, rows_are_mixed=True)
        weights = perturbed_weights(work, seen.dense(shape.rows, shape.columns, logits.device), leaves, seed)
        return weights.to(logits.dtype).reshape(logits.shape)

    def extra_repr(self) -> str:
        """The spec, for `print(module)`."""
        return str(self.spec)
