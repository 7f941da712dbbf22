"""Random numbers by position. The same seed words give the same numbers as in `attentiondrop.torch`.

`keras.random` is not used: TensorFlow's stateless generators give other numbers with XLA than without it, and each
backend has its own generators. A hash of (seed, regulariser, position) in integer arithmetic is the same on all three
backends, compiled or not. It is defined in `attentiondrop.hashing`. Only the seed comes from a
`keras.random.SeedGenerator`.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

# The only access to the global generator of Keras (`seed=None`), with its errors under JAX tracing.
from keras.src.random.seed_generator import draw_seed

from ...errors import ShapeError, bad_argument
from ...hashing import GOLDEN, MASK31, MIX31_2, MIX_1, MIX_2, PRIME, SHIFT, WORD

Tensor = Any

#: torch cannot multiply uint32; TensorFlow with a GPU computes int32 on the host.
_WORD = "int32" if keras.backend.backend() == "torch" else "uint32"


def seed_words(seed: Any) -> tuple[Tensor, Tensor]:
    """The low and the high word of the seed of one call.

    `seed` is a `SeedGenerator` (its state changes), an int, a tensor of two integers (as for TensorFlow's stateless
    functions), or None for the global generator of Keras.
    """
    if isinstance(seed, bool | float | str):
        raise bad_argument("seed", "an int, a keras.random.SeedGenerator, a tensor of two integers, or None", seed)
    if isinstance(seed, int | np.integer):
        return _constant(int(seed)), _constant(int(seed) >> 32)
    drawn = next_seed(seed) if seed is None or isinstance(seed, keras.random.SeedGenerator) else seed
    words = ops.convert_to_tensor(drawn)
    if tuple(words.shape) != (2,):
        raise ShapeError(f"seed: expected two integers, received a tensor of shape {tuple(words.shape)}")
    if "int" not in str(words.dtype):
        raise bad_argument("seed", "two integers", f"a tensor of dtype {words.dtype}")
    words = ops.cast(words, _WORD)
    return words[0], words[1]


def next_seed(generator: Any) -> Tensor:
    """The next seed of a generator (None: the global one of Keras) as two integers, another one for each replica."""
    seed, replica = draw_seed(generator), _replica()
    if replica is None:
        return seed
    # The second integer counts calls. Replicas are so far apart that no training reaches the calls of another one.
    apart = ops.multiply(ops.cast(replica, _WORD), _constant(GOLDEN))
    return ops.bitwise_xor(ops.cast(seed, _WORD), ops.stack([ops.zeros_like(apart), apart]))


def _replica() -> Any:
    """The number of this replica in data-parallel training; None if there is one copy of the model.

    Each replica has the same seeds. (On JAX, Keras splits one batch, so the positions of its samples differ.)
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        alone = context is None or context.num_replicas_in_sync == 1
        return None if alone else context.replica_id_in_sync_group
    if keras.backend.backend() == "torch":
        import torch

        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank() or None
    return None


class Stream:
    """The draws of one regulariser in one call: a seed and the number of the regulariser within its spec."""

    def __init__(self, words: tuple[Tensor, Tensor], number: int) -> None:
        low, high = words
        first, second = _constant(number * GOLDEN), _constant(number * PRIME + SHIFT)
        self.k0 = _mix(ops.bitwise_xor(low, _mix(ops.add(high, first))))
        self.k1 = _mix(ops.bitwise_xor(high, _mix(ops.add(self.k0, second))))

    def uniforms(self, batch: Any, heads: Any, rows: Any, columns: Any) -> Tensor:
        """Uniforms in [0, 1) of shape [batch, heads, rows, columns], float32."""
        return _to_uniform(self._words(batch, heads, rows, columns))

    def normals(self, batch: Any, heads: Any, rows: Any, columns: Any) -> Tensor:
        """Standard normals of the same shape, by Box and Muller from two words at each position."""
        return _to_normal(self._words(batch, heads, rows, columns))

    def uniform_vector(self, length: Any) -> Tensor:
        """`length` uniforms in [0, 1), float32."""
        return _to_uniform(self._vector(length))

    def normal_vector(self, length: Any) -> Tensor:
        """`length` standard normals, float32."""
        return _to_normal(self._vector(length))

    def _words(self, batch: Any, heads: Any, rows: Any, columns: Any) -> Tensor:
        line = ops.reshape(self._odd(_positions(batch * heads * rows)), (batch, heads, rows, 1))
        column = self._odd(ops.subtract(_constant(MASK31), _positions(columns)))
        return ops.multiply(line, column)

    def _odd(self, x: Tensor) -> Tensor:
        """Twice a permutation of 31-bit numbers that the key chooses, plus 1."""
        x = _mix31(ops.add(ops.bitwise_xor(x, _shifted(self.k0, 1)), self.k1))
        x = _mix31(ops.add(ops.bitwise_xor(x, _shifted(self.k1, 1)), self.k0))
        return ops.add(ops.multiply(x, _constant(2)), _constant(1))

    def _vector(self, length: Any) -> Tensor:
        return _mix(ops.bitwise_xor(_mix(ops.add(_positions(length), self.k0)), self.k1))


def _positions(length: Any) -> Tensor:
    return ops.cast(ops.arange(length, dtype="int32"), _WORD)


def _constant(value: int) -> Tensor:
    """The low 32 bits of a number in the integer dtype of the backend."""
    return ops.convert_to_tensor(np.array(value & WORD, dtype=np.uint32).astype(_WORD), dtype=_WORD)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A logical right shift. (The shift of a signed word would copy the sign.)"""
    return ops.bitwise_and(ops.right_shift(x, _constant(bits)), _constant((1 << (32 - bits)) - 1))


def _mix31(x: Tensor) -> Tensor:
    """Of the low 31 bits. They are never negative, so a shift copies no sign."""
    mask = _constant(MASK31)
    x = ops.bitwise_and(x, mask)
    x = ops.bitwise_xor(x, ops.right_shift(x, _constant(16)))
    x = ops.bitwise_and(ops.multiply(x, _constant(MIX_1)), mask)
    x = ops.bitwise_xor(x, ops.right_shift(x, _constant(15)))
    x = ops.bitwise_and(ops.multiply(x, _constant(MIX31_2)), mask)
    return ops.bitwise_xor(x, ops.right_shift(x, _constant(16)))


def _mix(x: Tensor) -> Tensor:
    x = ops.bitwise_xor(x, _shifted(x, 16))
    x = ops.multiply(x, _constant(MIX_1))
    x = ops.bitwise_xor(x, _shifted(x, 15))
    x = ops.multiply(x, _constant(MIX_2))
    return ops.bitwise_xor(x, _shifted(x, 16))


def _finish(x: Tensor) -> Tensor:
    x = ops.multiply(x, _constant(GOLDEN))
    x = ops.bitwise_xor(x, _shifted(x, 15))
    x = ops.multiply(x, _constant(PRIME))
    return ops.bitwise_xor(x, _shifted(x, 13))


def _to_uniform(x: Tensor) -> Tensor:
    return ops.cast(_shifted(x, 8), "float32") * 2.0**-24


def _to_normal(first: Tensor) -> Tensor:
    """Standard normals by Box and Muller, from a word and a second word computed from it."""
    second = _finish(ops.bitwise_xor(first, _constant(PRIME)))
    # (n + 1) / 2^24 is never 0, so the logarithm is finite.
    radius = ops.sqrt(-2.0 * ops.log(_to_uniform(first) + 2.0**-24))
    return radius * ops.cos(2.0 * math.pi * _to_uniform(second))
