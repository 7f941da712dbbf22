"""A loss that keeps heads from attending to the same keys."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import ShapeError


def head_diversity_loss(weights: Tensor, visible: Tensor | None = None) -> Tensor:
    """How similar the heads of one attention are: the mean cosine similarity of their rows, over all pairs of heads.

    0 if no two heads look at a common key, 1 if all heads have the same weights. Multiply it by a small weight and add
    it to the loss; it has gradients for the attention weights.

    Args:
        weights: attention weights [..., H, N, M], H at least 2.
        visible: which queries count, a boolean that broadcasts to [..., N] (False for padding); all by default.

    Returns:
        A 0-dim tensor, the mean over samples, rows and pairs.

    Example:
        >>> one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> head_diversity_loss(torch.stack([one, one])), head_diversity_loss(torch.stack([one, other]))
        (tensor(1.), tensor(0.))
    """
    if weights.ndim < 3 or weights.shape[-3] < 2:
        raise ShapeError(
            f"weights: expected [..., heads, queries, keys] with 2 heads or more, received {list(weights.shape)}"
        )
    work = weights if weights.dtype == torch.float64 else weights.float()
    norms = torch.linalg.vector_norm(work, dim=-1, keepdim=True)
    # A row that sees no key has only zeros: its similarity to other rows is 0.
    rows = work / norms.clamp_min(torch.finfo(work.dtype).tiny)
    heads = work.shape[-3]
    # All pairs at once: |sum of unit vectors|^2 = H + 2 * (sum over pairs of their products).
    lengths = rows.square().sum((-3, -1))
    similarity: Tensor = (rows.sum(-3).square().sum(-1) - lengths) / (heads * (heads - 1))
    if visible is None:
        return similarity.mean()
    counted = visible.expand_as(similarity)
    mean: Tensor = similarity.masked_fill(~counted, 0.0).sum() / counted.sum().clamp_min(1)
    return mean
