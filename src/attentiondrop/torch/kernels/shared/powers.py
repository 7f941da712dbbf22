# mypy: ignore-errors
"""Powers of two, as exact as the dtype of the inputs deserves."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def power_of_two(x, WIDE: tl.constexpr):
    """`2**x`, 0 for -inf.

    The device's instruction is an approximation, whose error every weight would have. WIDE, for float32 inputs: within
    one eps. The polynomial is the best of its degree from -0.5 to 0.5 (largest relative error 2e-9); for whole numbers
    the instruction is exact.
    """
    if WIDE:
        x = tl.where(x < -200.0, -200.0, x)  # far below the smallest float; -inf - -inf is not a number
        whole = tl.floor(x + 0.5)
        rest = x - whole
        power = 1.53533596e-4 * rest + 1.33988746e-3
        power = power * rest + 9.61843737e-3
        power = power * rest + 5.55033247e-2
        power = power * rest + 2.40226479e-1
        power = power * rest + 6.93147203e-1
        power = (power * rest + 1.0) * tl.exp2(whole)
    else:
        power = tl.exp2(x)
    return power
