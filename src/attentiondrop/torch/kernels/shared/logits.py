# mypy: ignore-errors
"""What the kernels do to a tile of logits. Logits are in units of log2; a hidden one is -inf.

Indices, words and thresholds broadcast against the tile, so the same code works for tiles [rows, keys] and
[keys, rows].
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decided import ASM, kept
from .hashing import joined, to_normal
from .local import in_block

#: Arguments that are not specialised: one compiled kernel serves sequences of every length.
SIZES = ("H", "HK", "GROUP", "N", "M", "LINES", "left", "right", "slot_words", "head_words")


@triton.jit
def load_words(pointer, place, mask):
    """Words from a table, as unsigned; `mask` is None if all places exist."""
    if mask is None:
        words = tl.load(pointer + place)
    else:
        words = tl.load(pointer + place, mask=mask, other=1)
    return words.to(tl.uint32, bitcast=True)


@triton.jit
def load_now(pointer, place):
    """The same for places that exist, in assembler.

    In a loop, Triton copies such words to shared memory in advance, one by one, with an address for each. But all
    programs read the same few words, so they are near. In two parts, the places of a thread (it has every fourth pair)
    are one register and known numbers.
    """
    if ASM:
        words = tl.inline_asm_elementwise(
            "ld.global.nc.b32 $0, [$1];", "=r,l", [pointer + (place & 6) + (place & ~6)], dtype=tl.int32, is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        words = tl.load(pointer + place)
    return words.to(tl.uint32, bitcast=True)


@triton.jit
def load_rates(LIMITS, FACTORS):
    """Load the rates of all slots, once per program: sigma of the noise, three limits of words, two dropout factors."""
    drop = tl.load(LIMITS + 1).to(tl.uint32, bitcast=True)
    dropout_a = tl.load(LIMITS + 2).to(tl.uint32, bitcast=True)
    dropout_b = tl.load(LIMITS + 3).to(tl.uint32, bitcast=True)
    return tl.load(FACTORS), drop, dropout_a, dropout_b, tl.load(FACTORS + 2), tl.load(FACTORS + 3)


@triton.jit
def tables_of(WORDS, head, LINES, slot_words, head_words):
    """Where the words of rows and those of a head's keys begin, and how many words a slot has.

    `head_words` lie between the key words of two heads: 0 if all heads share theirs.
    """
    return WORDS, WORDS + LINES + head * head_words, slot_words


@triton.jit
def load_row_words(
    tables, lines, mask, NOISE: tl.constexpr, DROP: tl.constexpr, DROPOUT_A: tl.constexpr, DROPOUT_B: tl.constexpr
):
    """The words of some rows in every slot that is used, as vectors in the layout that the tile needs."""
    return _load_all_words(tables[0], lines, mask, tables[2], False, NOISE, DROP, DROPOUT_A, DROPOUT_B)


@triton.jit
def load_key_words(
    tables, start, places, mask, NOISE: tl.constexpr, DROP: tl.constexpr, DROPOUT_A: tl.constexpr,
    DROPOUT_B: tl.constexpr,
):  # fmt: skip
    """The same for the keys at some places from `start` on."""
    return _load_all_words(tables[1] + start, places, mask, tables[2], True, NOISE, DROP, DROPOUT_A, DROPOUT_B)


@triton.jit
def _load_all_words(
    WORDS, place, mask, span, OF_KEYS: tl.constexpr, NOISE: tl.constexpr, DROP: tl.constexpr, DROPOUT_A: tl.constexpr,
    DROPOUT_B: tl.constexpr,
):  # fmt: skip
    none = tl.full(place.shape, 1, tl.uint32)
    noise = _load_slot(WORDS, place, mask, OF_KEYS) if NOISE else none
    drop = _load_slot(WORDS + span, place, mask, OF_KEYS) if DROP != "" else none
    dropout_a = _load_slot(WORDS + 2 * span, place, mask, OF_KEYS) if DROPOUT_A != "" else none
    dropout_b = _load_slot(WORDS + 3 * span, place, mask, OF_KEYS) if DROPOUT_B else none
    return noise, drop, dropout_a, dropout_b


@triton.jit
def _load_slot(WORDS, place, mask, OF_KEYS: tl.constexpr):
    if OF_KEYS and mask is None:
        words = load_now(WORDS, place)
    else:
        words = load_words(WORDS, place, mask)
    return words


@triton.jit
def along_rows(words):
    """Shape words for the first dimension of a tile: of rows for [rows, keys], of keys for [keys, rows]."""
    return words[0][:, None], words[1][:, None], words[2][:, None], words[3][:, None]


@triton.jit
def along_columns(words):
    """Shape words for the second dimension of a tile."""
    return words[0][None, :], words[1][None, :], words[2][None, :], words[3][None, :]


@triton.jit
def load_tile(base, positions, stride, features, length, SIZE: tl.constexpr, BLOCK: tl.constexpr, EDGE: tl.constexpr):
    """Rows `positions` of a tensor [length, SIZE], zeros outside; EDGE says whether a position can be outside."""
    place = base + positions.to(tl.int64) * stride + features
    if EDGE:
        if SIZE == BLOCK:
            tile = tl.load(place, mask=positions < length, other=0.0)
        else:
            tile = tl.load(place, mask=(positions < length) & (features < SIZE), other=0.0)
    else:
        if SIZE == BLOCK:
            tile = tl.load(place)
        else:
            tile = tl.load(place, mask=features < SIZE, other=0.0)
    return tile


@triton.jit
def load_notes(NOTES, lines, mask, other):
    """Values that belong to rows; `other` where there is no row. `mask` is None if all rows exist."""
    if mask is None:
        notes = tl.load(NOTES + lines)
    else:
        notes = tl.load(NOTES + lines, mask=mask, other=other)
    return notes


@triton.jit
def with_growth(rates, GROWTH, lines, mask, DROPOUT_A: tl.constexpr):
    """The rates for some rows: if weights are divided by the share that is left, each row has a factor of its own."""
    factor = rates[4]
    if DROPOUT_A == "share":
        factor = load_notes(GROWTH, lines, mask, 0.0)[:, None]
    return rates[0], rates[1], rates[2], rates[3], factor, rates[5]


@triton.jit
def load_shares(SHARES, lines, mask, WIDE: tl.constexpr):
    """Factors that turn `exp2(logit - lse)` into a weight, for tiles [rows, keys]: see `call.decisions.empty_lse`."""
    shares = 1.0
    if WIDE:
        shares = load_notes(SHARES, lines, mask, 0.0)[:, None]
    return shares


@triton.jit
def accumulate(a, b, total):
    """`total + a @ b`.

    16-bit operands accumulate in the matrix unit. In float32 that would be one chain of additions along the whole
    sequence, and its rounding error grows with the length. Adding up the sums of tiles has a smaller error. The product
    starts from `total * 0.0`: with a plain zero, the compiler would turn it into one chain again.
    """
    if a.dtype == tl.float32:
        total = total + tl.dot(a, b, total * 0.0, input_precision="ieee")
    else:
        total = tl.dot(a, b, total)
    return total


@triton.jit
def in_64_bits(visible_n, visible_m, bias_n, bias_m):
    """The strides of masks whose places within a head do not fit into 32 bits: places are then counted in 64."""
    visible_n, visible_m = tl.cast(visible_n, tl.int64), tl.cast(visible_m, tl.int64)
    return visible_n, visible_m, tl.cast(bias_n, tl.int64), tl.cast(bias_m, tl.int64)


@triton.jit
def visible_logits(
    products,
    rows,
    columns,
    line_words,
    column_words,
    visible_base,
    visible_row_stride,
    visible_column_stride,
    bias_base,
    bias_row_stride,
    bias_column_stride,
    scale,
    sigma,
    N,
    M,
    HAS_VISIBLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NOISE: tl.constexpr,
    DIAGONAL: tl.constexpr,
    EDGE: tl.constexpr,
    near,
    corner,
    WINDOW: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Logits with bias and noise, -inf where the row does not see the key.

    DIAGONAL and EDGE say whether this tile can touch the future or the end of the keys; most tiles cannot. `near` is
    what `local.near_of` returned, `corner` the first row and the first key of the tile.
    """
    s = products * scale
    inside = (rows < N) & (columns < M)
    if HAS_BIAS:
        place = bias_base + rows * bias_row_stride + columns * bias_column_stride
        s += tl.load(place, mask=inside, other=0.0).to(tl.float32) * 1.4426950408889634
    if NOISE:
        s += to_normal(joined(line_words, column_words)) * sigma
    if HAS_VISIBLE:
        place = visible_base + rows * visible_row_stride + columns * visible_column_stride
        s = tl.where(tl.load(place, mask=inside, other=0) != 0, s, float("-inf"))
    if EDGE:
        s = tl.where(columns < M, s, float("-inf"))
    if DIAGONAL:
        s = tl.where(columns <= rows, s, float("-inf"))
    if WINDOW:
        s = tl.where((columns >= rows - near[0]) & (columns <= rows + near[1]), s, float("-inf"))
    if SIDE > 0:
        s = tl.where(in_block(near, corner, rows, columns, inside, M, SIDE), s, float("-inf"))
    return s


@triton.jit
def is_others(tied, count, start, RANKED: tl.constexpr, TIES: tl.constexpr, LISTED: tl.constexpr):
    """Whether this launch must skip a tile: the other variant computes it, or it lies past the end of the list."""
    others = False
    if LISTED:
        others = start >= tl.load(count)
    elif RANKED:
        if TIES:
            others = tl.load(tied) == 0
        else:
            others = tl.load(tied) != 0
    return others


@triton.jit
def tile_rows(start, listed, count, N, BM: tl.constexpr, LISTED: tl.constexpr):
    """The rows of a tile, or, if LISTED, the listed rows from `start` on. Places without a row get N or more."""
    rows = start + tl.arange(0, BM)
    if LISTED:
        known = rows < tl.load(count)
        rows = tl.where(known, tl.load(listed + rows, mask=known, other=0), N)
    return rows


@triton.jit
def causal_range(start, rows, N, M, BM: tl.constexpr, BN: tl.constexpr, LISTED: tl.constexpr):
    """Under a causal mask: the end of the keys that some row sees, and the end of the tiles that all rows see fully."""
    first = start
    last = start + BM
    if LISTED:
        first = tl.min(rows, 0)
        last = tl.max(tl.where(rows < N, rows, 0), 0) + 1
    return tl.minimum(M, last), tl.minimum(M // BN * BN, (first + 1) // BN * BN)


@triton.jit
def dropped_key(key, words, KEY_WORDS, limit):
    """`key` where there is one (not -1) and its draw drops it, else -1."""
    there = key >= 0
    return tl.where(there & (joined(words, load_words(KEY_WORDS, key, there)) <= limit), key, -1)


@triton.jit
def append_rows(chosen, rows, listed, count):
    """Append the chosen rows to a list. The order depends on the order in which programs run."""
    chosen = chosen.to(tl.int32)
    number = tl.sum(chosen, 0)
    if number > 0:
        place = tl.atomic_add(count, number, sem="relaxed") + tl.cumsum(chosen, 0) - 1
        tl.store(listed + place, rows, mask=chosen > 0)


@triton.jit
def bounds(place, below, high, scale):
    """`low` and `high` of `is_dropped`, from the k-th and the next logit of each row, before the scale."""
    between = 0.5 * place + 0.5 * below
    between = tl.where(between > below, between, place)
    # With k visible keys or fewer, all of them are candidates: the bound is below every visible logit.
    return tl.where(below > float("-inf"), between * scale, -3.0e38), high * scale


@triton.jit
def is_dropped(
    s,
    columns,
    line_words,
    column_words,
    limit,
    low,
    high,
    cut,
    RANKED: tl.constexpr,
    TIES: tl.constexpr,
):
    """Whether each logit is a candidate and its draw drops it; never for a hidden one.

    RANKED: candidates are at least `low`, which lies between the k-th and the next logit of the row, so that rounding
    in another kernel changes nothing. TIES: if the k-th and the next logit of a row are equal, only ties up to key
    `cut` are candidates. Keys after `cut` are compared with `high`, which lies above the ties. In other rows `cut` is
    past the end.
    """
    dropped = joined(line_words, column_words) <= limit
    if RANKED:
        if TIES:
            dropped = dropped & (s >= tl.where(columns <= cut, low, high))
        else:
            dropped = dropped & (s >= low)
    else:
        dropped = dropped & (s > float("-inf"))
    return dropped


@triton.jit
def kept_weights(p, line_words, column_words, columns, keep, rates, A: tl.constexpr, B: tl.constexpr):
    """The weights that one or two drops leave, 0 for the others. Nothing is scaled up yet: see `weight_growth`.

    A is "", "scale" (dropout) or "share": there an emptied row keeps the key `keep`.
    """
    if A == "share":
        dropped = (joined(line_words[2], column_words[2]) <= rates[2]) & (columns != keep)
        p = tl.where(dropped, 0.0, p)
    elif A != "":
        p = kept(p, line_words[2], column_words[2], rates[2], 0.0)
    if B:
        p = kept(p, line_words[3], column_words[3], rates[3], 0.0)
    return p


@triton.jit
def weight_growth(rates, A: tl.constexpr, B: tl.constexpr):
    """What all kept weights are multiplied by, 1.0 without a drop. It is one number, so sums are multiplied by it."""
    growth = 1.0
    if A == "scale":
        growth = rates[4]
    if B:
        growth = growth * rates[5]
    return growth
