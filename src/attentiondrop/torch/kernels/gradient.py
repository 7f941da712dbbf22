# mypy: ignore-errors
"""The gradient of a tile: that of every kept logit is `P * (dO.v - delta)`, a logit filled with 0 has none."""

from __future__ import annotations

import triton
import triton.language as tl

from .logits import is_dropped, load_words, visible_logits, weight_factor


@triton.jit
def weights_and_gradient(
    products,
    value_products,
    rows,
    columns,
    lines,
    lse,
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
    WORDS,
    LIMITS,
    FACTORS,
    scale,
    N,
    M,
    LINES,
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
):
    """The weights that met the values, and the gradient of the logits, of one tile [rows, keys]."""
    span = LINES + M
    row_known = rows < N
    column_known = columns < M
    if NOISE:
        noise_lines = load_words(WORDS, lines, row_known)
        noise_columns = load_words(WORDS + LINES, columns, column_known)
        sigma = tl.load(FACTORS)
    else:
        noise_lines = rows
        noise_columns = columns
        sigma = 0.0
    s = visible_logits(
        products, rows, columns, noise_lines, noise_columns, VISIBLE, visible_n, visible_m, BIAS, bias_n, bias_m, scale,
        sigma, N, M, HAS_VISIBLE, HAS_BIAS, NOISE, DIAGONAL, EDGE,
    )  # fmt: skip
    if DROP != "":
        drop_lines = load_words(WORDS + span, lines, row_known)
        drop_columns = load_words(WORDS + span + LINES, columns, column_known)
        limit = tl.load(LIMITS + 1).to(tl.uint32, bitcast=True)
        dropped = is_dropped(s, columns, drop_lines, drop_columns, limit, low, high, cut, RANKED, TIES)
        if DROP == "zero":
            s = tl.where(dropped, 0.0, s)
        else:
            s = tl.where(dropped & (columns != keep), float("-inf"), s)
    p = tl.exp2(s - lse)
    if DROPOUT_A or DROPOUT_B:
        a_lines = load_words(WORDS + 2 * span, lines, row_known & DROPOUT_A)
        a_columns = load_words(WORDS + 2 * span + LINES, columns, column_known & DROPOUT_A)
        b_lines = load_words(WORDS + 3 * span, lines, row_known & DROPOUT_B)
        b_columns = load_words(WORDS + 3 * span + LINES, columns, column_known & DROPOUT_B)
        factor = weight_factor(
            p, a_lines, a_columns, b_lines, b_columns, tl.load(LIMITS + 2).to(tl.uint32, bitcast=True),
            tl.load(LIMITS + 3).to(tl.uint32, bitcast=True), tl.load(FACTORS + 2), tl.load(FACTORS + 3),
            DROPOUT_A, DROPOUT_B,
        )  # fmt: skip
        met = p * factor
        value_products = value_products * factor
    else:
        met = p
    ds = p * (value_products - delta)
    if DROP == "zero":
        ds = tl.where(dropped, 0.0, ds)
    return met, ds
