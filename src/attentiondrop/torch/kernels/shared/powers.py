# mypy: ignore-errors
"""Powers of two, as exact as the dtype of the inputs needs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def power_of_two(x, WIDE: tl.constexpr):
    """`2**x`, 0 for -inf.

    The instruction of the device is an approximation, and all weights would have its error. WIDE, for float32 inputs:
    the error is within one eps. The polynomial is the best of its degree from -0.5 to 0.5 (its relative error is at
    most 2e-9). For whole numbers the instruction is exact.
    """
    if WIDE:
        x = tl.where(x < -200.0, -200.0, x)  # 2**-200 is 0 in float32; -inf would give NaN below
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
