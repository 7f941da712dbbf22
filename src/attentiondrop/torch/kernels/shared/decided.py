# mypy: ignore-errors
"""What a draw does to a logit or a weight, in one piece of assembler for each.

Written as comparison and selection, LLVM gathers the comparisons of a tile in bit masks and takes them apart again.
That is more work than the draws themselves. LLVM does not look into assembler. The interpreter cannot run assembler, so
it gets the same in plain operations. All functions broadcast.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .hashing import joined

#: Whether assembler runs.
ASM = tl.constexpr(not triton.knobs.runtime.interpret)
#: A logit that is at least this large is no hidden one.
SEEN = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def kept(x, line_words, column_words, limit, otherwise):
    """`x`, or `otherwise` where the draw drops it."""
    if ASM:
        result = tl.inline_asm_elementwise(
            "{.reg .pred p; .reg .b32 w; mul.lo.u32 w, $2, $3; setp.le.u32 p, w, $4; selp.f32 $0, $5, $1, p;}",
            "=f,f,r,r,r,f", [x, line_words, column_words, limit, otherwise], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        result = tl.where(joined(line_words, column_words) <= limit, otherwise, x)
    return result


@triton.jit
def filled(s, line_words, column_words, limit, low, fill):
    """`fill` in place of a logit that is at least `low` and that its draw drops."""
    if ASM:
        result = tl.inline_asm_elementwise(
            """{.reg .pred p; .reg .b32 w; mul.lo.u32 w, $2, $3; setp.le.u32 p, w, $4; setp.ge.and.f32 p, $1, $5, p;
            selp.f32 $0, $6, $1, p;}""",
            "=f,f,r,r,r,f,f", [s, line_words, column_words, limit, low, fill], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        result = tl.where((joined(line_words, column_words) <= limit) & (s >= low), fill, s)
    return result


@triton.jit
def kept_factor(s, line_words, column_words, limit, low):
    """1 for a logit that is kept, 0 for one that is at least `low` and that its draw drops."""
    if ASM:
        factor = tl.inline_asm_elementwise(
            """{.reg .pred p; .reg .b32 w; mul.lo.u32 w, $2, $3; setp.le.u32 p, w, $4; setp.ge.and.f32 p, $1, $5, p;
            selp.f32 $0, 0f00000000, 0f3F800000, p;}""",
            "=f,f,r,r,r,f", [s, line_words, column_words, limit, low], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        factor = tl.where((joined(line_words, column_words) <= limit) & (s >= low), 0.0, 1.0)
    return factor
