# mypy: ignore-errors
"""The sweep of hard masking that finds keys: those of each row's k largest logits that a draw drops.

Each slot (row and column in a tile) keeps the DEPTH largest logits that it saw (`candidates`). The lowest bits of each
logit are replaced by the number of its tile; tile and slot together give the key. Doubtful rows are listed for
`recount`. A row is doubtful if a slot holds DEPTH of the k largest, because it may have lost a further one. It is also
doubtful if the replaced bits may have exchanged the k-th and the next logit, and one of the two is dropped.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..decide.candidates import insert, without
from ..shared.logits import SIZES, append_rows, bounds, dropped_key, load_tile, load_words

#: The value of hidden logits. They get a tile number like the others, and -inf with other low bits would be NaN.
HIDDEN = tl.constexpr(-3.0e38)
SEEN = tl.constexpr(-2.9e38)


@triton.jit
def products(
    q, K, k_m, start, rows, d, M, D: tl.constexpr, BLOCK_D: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
    EDGE: tl.constexpr, hidden: tl.constexpr,
):  # fmt: skip
    """The products of `rows` with the keys from `start` on; `hidden` past the end (EDGE) and in the future (CAUSAL)."""
    columns = start + tl.arange(0, BN)
    k = load_tile(K, columns[None, :], k_m, d[:, None], M, D, BLOCK_D, EDGE)
    s = tl.dot(q, k, input_precision="ieee")
    if EDGE:
        seen = columns[None, :] < M
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        s = tl.where(seen, tl.maximum(s, hidden), hidden)
    return s


@triton.jit
def _coded(s, code, CODE_BITS: tl.constexpr, ASM: tl.constexpr):
    """The logit with a code in place of its lowest bits.

    The assembler needs one instruction where the compiler would use two.
    """
    bits = s.to(tl.int32, bitcast=True)
    kept = tl.full(s.shape, -(1 << CODE_BITS), tl.int32)
    if ASM:
        codes = tl.full(s.shape, 0, tl.int32) + code
        bits = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, $3, 0xEA;", "=r,r,r,r", [bits, kept, codes], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        bits = (bits & kept) | code
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _margin(s, CODE_BITS: tl.constexpr):
    """Twice the largest change by a code in this logit and in another one of about the same size."""
    return tl.abs(s) * ((1 << CODE_BITS) / 2097152.0) + 1.0e-37


@triton.jit
def _pop_key(a0, a1, a2, a3, slots, BN: tl.constexpr, CODE_BITS: tl.constexpr, DEPTH: tl.constexpr):
    """Each row's largest candidate and its key (-1 if the key is hidden), and the candidates without it."""
    place = tl.max(a0, 1)
    # Equal logits of different tiles differ by their code. Within a tile the first slot comes first.
    slot = tl.min(tl.where(a0 == place[:, None], slots[None, :], BN), 1)
    key = (place.to(tl.int32, bitcast=True) & ((1 << CODE_BITS) - 1)) * BN + slot
    a0, a1, a2, a3 = without(slots[None, :] == slot[:, None], a0, a1, a2, a3, DEPTH)
    return a0, a1, a2, a3, place, tl.where(place > SEEN, key, -1)


@triton.jit
def store_lost(lost, inside, keys, dropped, TOP: tl.constexpr, WIDTH: tl.constexpr):
    """Store the dropped ones of each row's `keys` [rows, WIDTH], followed by -1."""
    ranks = tl.arange(0, WIDTH)[None, :]
    dropped = (dropped & inside[:, None]).to(tl.int32)
    tl.store(lost[:, None] + tl.cumsum(dropped, 1) - 1, keys, mask=dropped > 0)
    rest = (ranks >= tl.sum(dropped, 1)[:, None]) & (ranks < TOP)
    tl.store(lost[:, None] + ranks, -1, mask=rest & inside[:, None])


@triton.jit(do_not_specialize=[*SIZES])
def pick_kernel(
    Q,
    K,
    WORDS,
    LIMITS,
    LOW,
    HIGH,
    CUT,
    LOST,
    ROWS,
    COUNTS,
    q_b,
    q_h,
    q_n,
    k_b,
    k_h,
    k_m,
    scale,
    H,
    GROUP,
    N,
    M,
    LINES,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    DEPTH: tl.constexpr,
    TOP: tl.constexpr,
    CODE_BITS: tl.constexpr,
    CAUSAL: tl.constexpr,
    STAGES: tl.constexpr,
    ASM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Program: one tile of rows of one head. Writes `LOST` [rows, TOP] (dropped keys, then -1) and the bounds.

    `LOW`, `HIGH`, `CUT`: see `is_dropped`. Doubtful rows are added to the head's list in `ROWS` and `COUNTS`; their
    `LOW` gets a floor: the k + 1 largest products are at least as large. WIDTH: a power of two, more than TOP.
    """
    tiles = tl.cdiv(N, BM)
    head = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    if CAUSAL:
        # The last rows have the most keys, so they start first.
        tile = tiles - 1 - tile
    b = head // H
    h = head % H
    rows = tile * BM + tl.arange(0, BM)
    d = tl.arange(0, BLOCK_D)
    inside = rows < N
    lines = head * N + rows
    q = load_tile(Q + b * q_b + h * q_h, rows[:, None], q_n, d[None, :], N, D, BLOCK_D, True)
    K += b * k_b + (h // GROUP) * k_h
    end = M
    full = M // BN * BN
    if CAUSAL:
        end = tl.minimum(M, tile * BM + BM)
        full = tl.minimum(full, (tile * BM + 1) // BN * BN)

    t0 = tl.full([BM, BN], float("-inf"), tl.float32)
    t1 = t0
    t2 = t0
    t3 = t0
    slots = tl.arange(0, BN)
    for start in tl.range(0, full, BN, num_stages=STAGES):
        s = products(q, K, k_m, start, rows, d, M, D, BLOCK_D, BN, False, False, HIDDEN)
        t0, t1, t2, t3 = insert(_coded(s, start // BN, CODE_BITS, ASM), t0, t1, t2, t3, DEPTH)
    for start in tl.range(full, end, BN, num_stages=1):
        s = products(q, K, k_m, start, rows, d, M, D, BLOCK_D, BN, CAUSAL, True, HIDDEN)
        t0, t1, t2, t3 = insert(_coded(s, start // BN, CODE_BITS, ASM), t0, t1, t2, t3, DEPTH)

    deepest = tl.max(t3 if DEPTH == 4 else (t2 if DEPTH == 3 else (t1 if DEPTH == 2 else t0)), 1)
    WORDS += LINES + M  # slot 1, that of dropped logits
    words = load_words(WORDS, lines, inside)
    limit = tl.load(LIMITS + 1).to(tl.uint32, bitcast=True)
    ranks = tl.arange(0, WIDTH)[None, :]
    keys = tl.full([BM, WIDTH], -1, tl.int32)
    before = tl.full([BM], float("inf"), tl.float32)
    place = before
    below = before
    for rank in tl.static_range(TOP + 1):
        before = place
        place = below
        t0, t1, t2, t3, below, key = _pop_key(t0, t1, t2, t3, slots, BN, CODE_BITS, DEPTH)
        keys = tl.where(ranks == rank, key[:, None], keys)
    after = tl.max(t0, 1)
    dropped = dropped_key(keys, words[:, None], WORDS + LINES, limit) >= 0
    store_lost(LOST + lines * TOP, inside, keys, dropped & (ranks < TOP), TOP, WIDTH)
    margin = _margin(place, CODE_BITS)
    matters = tl.max((dropped & (ranks >= TOP - 1) & (ranks <= TOP)).to(tl.int32), 1) > 0
    # If more than two logits are too close to each other, the row is doubtful in any case.
    doubtful = (place - below <= margin) & (matters | (before - place <= margin) | (below - after <= margin))
    if tl.cdiv(end, BN) > DEPTH:
        doubtful = doubtful | (deepest >= place - margin)
    doubtful = doubtful & (below > SEEN) & inside
    append_rows(doubtful, rows, ROWS + head * N, COUNTS + head)
    floor = below - _margin(below, CODE_BITS)
    place = tl.where(place > SEEN, place, float("-inf"))
    low, high = bounds(place, tl.where(below > SEEN, below, float("-inf")), place, scale)
    tl.store(LOW + lines, tl.where(doubtful, floor, low), mask=inside)
    tl.store(HIGH + lines, high, mask=inside)
    tl.store(CUT + lines, 2147483647, mask=inside)
