# mypy: ignore-errors
"""The gradient of the logits of a tile: `P * (dO.v - delta)` for a kept logit, 0 for a logit that was filled with 0."""

from __future__ import annotations

import triton
import triton.language as tl

from ..shared.decided import SEEN, kept, kept_factor
from ..shared.logits import is_dropped, kept_weights, visible_logits
from ..shared.powers import power_of_two


@triton.jit
def weights_and_gradient(
    products,
    value_products,
    rows,
    columns,
    line_words,
    column_words,
    lse,
    share,
    delta,
    low,
    high,
    cut,
    keep,
    VISIBLE,
    visible_n,
    visible_m,
    BIAS,
    bias_n,
    bias_m,
    rates,
    scale,
    N,
    M,
    DIAGONAL: tl.constexpr,
    EDGE: tl.constexpr,
    HAS_VISIBLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NOISE: tl.constexpr,
    DROP: tl.constexpr,
    RANKED: tl.constexpr,
    TIES: tl.constexpr,
    DROPOUT_A: tl.constexpr,
    DROPOUT_B: tl.constexpr,
    WIDE: tl.constexpr,
    near,
    corner,
    WINDOW: tl.constexpr,
    SIDE: tl.constexpr,
):
    """For one tile: the softmax, the weights that drops leave of it, and the gradient of the logits.

    The last two, and `delta`, are in units of `weight_growth`. `keep` matters only if DROPOUT_A is "share".
    """
    s = visible_logits(
        products, rows, columns, line_words[0], column_words[0], VISIBLE, visible_n, visible_m, BIAS, bias_n, bias_m,
        scale, rates[0], N, M, HAS_VISIBLE, HAS_BIAS, NOISE, DIAGONAL, EDGE, near,
        corner, WINDOW, SIDE,
    )  # fmt: skip
    level = -lse
    if DROP == "zero":
        if TIES:
            dropped = is_dropped(s, columns, line_words[1], column_words[1], rates[1], low, high, cut, RANKED, TIES)
            stays = tl.where(dropped, 0.0, 1.0)
        else:
            stays = kept_factor(s, line_words[1], column_words[1], rates[1], low if RANKED else SEEN)
        s = s * stays
    elif DROP == "hide":
        if RANKED:
            dropped = is_dropped(s, columns, line_words[1], column_words[1], rates[1], low, high, cut, RANKED, TIES)
            if DROPOUT_A == "share":
                dropped = dropped & (columns != keep)
            s = tl.where(dropped, float("-inf"), s)
        else:
            # Not a logit but what is added to it: that is one instruction with the scale, and a NaN stays a NaN.
            level = kept(level, line_words[1], column_words[1], rates[1], float("-inf") - lse)
            if DROPOUT_A == "share":
                level = tl.where(columns == keep, -lse, level)
    p = power_of_two(s + level, WIDE) * share
    weights = p
    if DROPOUT_A != "" or DROPOUT_B:
        weights = kept_weights(p, line_words, column_words, columns, keep, rates, DROPOUT_A, DROPOUT_B)
        if DROPOUT_A == "share":
            weights = weights * rates[4]
        ds = weights * value_products - p * delta
    else:
        ds = p * (value_products - delta)
    if DROP == "zero":
        ds = ds * stays
    return p, weights, ds
