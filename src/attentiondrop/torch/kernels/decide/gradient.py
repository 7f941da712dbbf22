# mypy: ignore-errors
"""The gradient of the logits of a tile: `P * (dO.v - delta)` for a kept logit, 0 for a logit that was filled with 0."""

from __future__ import annotations

import triton
import triton.language as tl

from ..shared.decided import SEEN, hidden_unless, kept_bits, only_bits
from ..shared.logits import is_dropped, visible_logits, weight_factor
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
    """For one tile: the softmax, the factor of drops on it, and the gradient of the logits."""
    s = visible_logits(
        products, rows, columns, line_words[0], column_words[0], VISIBLE, visible_n, visible_m, BIAS, bias_n, bias_m,
        scale, rates[0], N, M, HAS_VISIBLE, HAS_BIAS, NOISE, DIAGONAL, EDGE, near,
        corner, WINDOW, SIDE,
    )  # fmt: skip
    if DROP != "":
        if RANKED and (TIES or DROP != "zero"):
            dropped = is_dropped(s, columns, line_words[1], column_words[1], rates[1], low, high, cut, RANKED, TIES)
            if DROP == "zero":
                s = tl.where(dropped, 0.0, s)
            else:
                s = tl.where(dropped & (columns != keep), float("-inf"), s)
        elif DROP == "zero":
            kept = kept_bits(s, line_words[1], column_words[1], rates[1], low if RANKED else SEEN)
            s = only_bits(s, kept)
        else:
            s = hidden_unless(s, line_words[1], column_words[1], rates[1], columns, keep)
    p = power_of_two(s - lse, WIDE) * share
    factor = weight_factor(line_words, column_words, columns, keep, rates, DROPOUT_A, DROPOUT_B)
    ds = p * (value_products * factor - delta)
    if DROP == "zero":
        if TIES:
            ds = tl.where(dropped, 0.0, ds)
        else:
            ds = only_bits(ds, kept)
    return p, factor, ds
