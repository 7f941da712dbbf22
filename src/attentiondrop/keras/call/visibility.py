"""Which keys each row sees: from boolean and additive masks, and from causality."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from ...errors import ArgumentError, ShapeError
from .leaves import Leaf, LogitShape

Tensor = Any


class Sight(NamedTuple):
    """Mask, bias and causality; `visible` and `bias` are None, or have 4 dimensions that broadcast to [B, H, N, M]."""

    visible: Tensor | None = None
    bias: Tensor | None = None
    is_causal: bool = False


def sight_of(mask: Any, bias: Any, is_causal: bool, shape: LogitShape | None = None) -> Sight:
    """Mask, bias and causality of a call; with the shape of its logits, masks that do not fit are refused."""
    visible, added = split(mask, "mask", shape)
    seen, shift = split(bias, "bias", shape)
    if added is not None:
        shift = added if shift is None else ops.add(shift, added)
    return Sight(both(visible, seen), shift, is_causal)


def split(mask: Any, name: str, shape: LogitShape | None = None) -> tuple[Tensor | None, Tensor | None]:
    """Split a mask into (visible, bias), both with 4 dimensions; None: all keys are visible, nothing is added."""
    if mask is None:
        return None, None
    mask = ops.convert_to_tensor(mask)
    received = list(mask.shape)
    if len(received) > 4:
        raise ShapeError(f"{name}: expected at most 4 dimensions, received {received}")
    for _ in range(4 - len(received)):
        mask = ops.expand_dims(mask, 0)
    if shape is not None and not _broadcasts(mask.shape, shape):
        raise ShapeError(f"{name}: expected a shape that broadcasts to {list(shape)}, received {received}")
    dtype = str(mask.dtype)
    if "float" not in dtype:
        return ops.cast(mask, "bool"), None
    # The limit is half of the lowest finite value: libraries write finfo.min, or sums with it, for hidden keys.
    # A NaN hides nothing, so that it reaches the output, where users see it.
    visible = ops.logical_not(mask <= lowest(dtype) / 2)
    return visible, ops.where(visible, mask, ops.zeros_like(mask))


def _broadcasts(have: Any, want: LogitShape) -> bool:
    """Whether sizes fit. The logits must not grow to the mask. Sizes that are unknown in a traced graph always fit."""
    pairs = zip(have, want, strict=True)
    return all(one == 1 or one == other for one, other in pairs if isinstance(one, int) and isinstance(other, int))


def is_additive(mask: Any) -> bool:
    """Whether a mask is added to the logits: it has a floating-point dtype. `keras.ops` knows boolean masks only."""
    if mask is None:
        return False
    dtype = mask.dtype if hasattr(mask, "dtype") else np.asarray(mask).dtype
    return "float" in keras.backend.standardize_dtype(dtype)


def as_bias(mask: Any, bias: Any, is_causal: bool, query: Tensor, key: Tensor) -> Tensor:
    """An additive mask, a bias and causality in one finite bias, which `ops.dot_product_attention` takes everywhere.

    Hidden keys get what Keras itself gives them for a boolean mask, so a row that sees no key gives no NaN. (On torch,
    Keras takes a bias neither together with a mask nor with causality.)
    """
    dtype = keras.backend.standardize_dtype(query.dtype)
    visible, added, _ = sight_of(mask, bias, is_causal)
    if is_causal:
        visible = both(visible, past(ops.shape(query)[1], ops.shape(key)[1]))
    return ops.where(visible, ops.cast(added, dtype), ops.cast(0.7 * lowest(dtype), dtype))


def lowest(dtype: str) -> float:
    """The lowest finite value of a dtype, bfloat16 included, which NumPy does not know."""
    if "bfloat16" in dtype:
        return -3.3895313892515355e38
    return float(np.finfo(next(name for name in ("float64", "float32", "float16") if name in dtype)).min)


def past(rows: Any, columns: Any) -> Tensor:
    """Row i sees the keys j <= i: [1, 1, N, M]."""
    row = ops.reshape(ops.arange(rows, dtype="int32"), (1, 1, rows, 1))
    return row >= ops.reshape(ops.arange(columns, dtype="int32"), (1, 1, 1, columns))


def both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The keys that are visible under both masks."""
    return other if one is None else one if other is None else ops.logical_and(one, other)


def is_same_for_all_rows(visible: Tensor | None, is_causal: bool) -> bool:
    """Whether all rows see the same keys. Judged by shapes, since values cannot be read while a graph is traced."""
    return not is_causal and (visible is None or visible.shape[-2] == 1)


def check_both_axes(leaves: list[Leaf], visible: Tensor | None, is_causal: bool) -> None:
    """Refuse a blur along the queries if rows see different keys: a row would get values that only later rows see."""
    if any(leaf.spec.mixes_rows for leaf in leaves) and not is_same_for_all_rows(visible, is_causal):
        kind = "a causal mask" if is_causal else "a mask with a row dimension"
        raise ArgumentError(
            f'axes: expected "keys" under {kind}, received "both", which would show a row what only later rows see'
        )


def seen_by_all_rows(unhidden: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """What logits [B, H, N, M] do not hide themselves, for a regulariser that mixes rows: [B, H, 1, M], and the logits.

    A logit that only some rows hide becomes NaN: values cannot be read while a graph is traced, so it is no error here.
    """
    seen = ops.any(unhidden, axis=-2, keepdims=True)
    differing = ops.logical_and(seen, ops.logical_not(unhidden))
    return seen, ops.where(differing, ops.cast(float("nan"), logits.dtype), logits)
