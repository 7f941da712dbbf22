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

_ASM = tl.constexpr(not triton.knobs.runtime.interpret)
#: A logit that is at least this large is no hidden one.
SEEN = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def kept_factor(line_words, column_words, limit, factor):
    """`factor` of a weight that is kept, 0 of one that its draw drops."""
    if _ASM:
        result = tl.inline_asm_elementwise(
            "{.reg .pred p; .reg .b32 w; mul.lo.u32 w, $1, $2; setp.le.u32 p, w, $3; selp.f32 $0, 0f00000000, $4, p;}",
            "=f,r,r,r,f", [line_words, column_words, limit, factor], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        result = tl.where(joined(line_words, column_words) <= limit, 0.0, factor)
    return result


@triton.jit
def filled(s, line_words, column_words, limit, low, fill):
    """`fill` in place of a logit that is at least `low` and that its draw drops."""
    if _ASM:
        result = tl.inline_asm_elementwise(
            """{.reg .pred p; .reg .b32 w; mul.lo.u32 w, $2, $3; setp.le.u32 p, w, $4; setp.ge.and.f32 p, $1, $5, p;
            selp.f32 $0, $6, $1, p;}""",
            "=f,f,r,r,r,f,f", [s, line_words, column_words, limit, low, fill], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        result = tl.where((joined(line_words, column_words) <= limit) & (s >= low), fill, s)
    return result


@triton.jit
def hidden_unless(s, line_words, column_words, limit, columns, keep):
    """-inf in place of a logit that its draw drops, unless it belongs to the key `keep`."""
    if _ASM:
        result = tl.inline_asm_elementwise(
            """{.reg .pred p; .reg .b32 w; mul.lo.u32 w, $2, $3; setp.le.u32 p, w, $4; setp.ne.and.s32 p, $5, $6, p;
            setp.gt.and.f32 p, $1, 0fFF800000, p; selp.f32 $0, 0fFF800000, $1, p;}""",
            "=f,f,r,r,r,r,r", [s, line_words, column_words, limit, columns, keep], dtype=tl.float32, is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        dropped = (joined(line_words, column_words) <= limit) & (columns != keep) & (s > float("-inf"))
        result = tl.where(dropped, float("-inf"), s)
    return result


@triton.jit
def kept_bits(s, line_words, column_words, limit, low):
    """All bits of a logit that is kept, none of one that is at least `low` and that its draw drops."""
    if _ASM:
        bits = tl.inline_asm_elementwise(
            """{.reg .pred p; .reg .b32 w; mul.lo.u32 w, $2, $3; setp.le.u32 p, w, $4; setp.ge.and.f32 p, $1, $5, p;
            selp.b32 $0, 0, -1, p;}""",
            "=r,f,r,r,r,f", [s, line_words, column_words, limit, low], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        bits = tl.where((joined(line_words, column_words) <= limit) & (s >= low), 0, -1)
    return bits


@triton.jit
def only_bits(x, bits):
    """The float where `bits` are all set, 0 where none is."""
    return (x.to(tl.int32, bitcast=True) & bits).to(tl.float32, bitcast=True)
