# mypy: ignore-errors
"""The cosine of a full turn, without what larger arguments need."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cosine(x):
    """`tl.cos(x)` for x from 0 to 2 pi, with the same bits on NVIDIA.

    There `tl.cos` is `__nv_cosf` of CUDA. Its arguments may be huge: for these it has a loop over many digits of
    1 / pi, which is compiled once for each logit of a thread. Kernels get twice as large by it. Without it the steps
    are: subtract a multiple of pi / 2, in three parts; then compute the polynomial of a cosine or a sine.
    """
    # Adding 1.5 * 2**23 rounds to a whole number, which stands in the last bits. (`fma` rounds the product by itself:
    # the compiler must not join it with the sum.)
    shifted = tl.fma(x, 0.6366197466850281, 0.0) + 12582912.0
    quarter = shifted.to(tl.int32, bitcast=True)
    whole = shifted - 12582912.0
    x = tl.fma(whole, -1.570796251296997, x)
    x = tl.fma(whole, -7.549789415861596e-08, x)
    x = tl.fma(whole, -5.390302953474238e-15, x)
    square = x * x
    is_sine = (quarter & 1) != 0
    first = tl.where(is_sine, x, 1.0)
    y = tl.where(is_sine, -0.00019574658654164523, tl.fma(square, 2.4279579520225525e-05, -0.0013887860113754869))
    y = tl.fma(y, square, tl.where(is_sine, 0.00833270326256752, 0.041666727513074875))
    y = tl.fma(y, square, tl.where(is_sine, -0.16666662693023682, -0.4999999701976776))
    y = tl.fma(y, square * first, first)
    return tl.where(((quarter + 1) & 2) != 0, -y, y)
