"""Compare Keras with the NumPy oracle given identical draws: outputs and every gradient, on the backend at hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from attentiondrop import reference
from attentiondrop.keras import attention
from attentiondrop.specs import Compose, Consistency, OneOf, Spec

BACKEND = keras.backend.backend()


@dataclass(frozen=True)
class Case:
    """One situation: sizes, and what hides or shifts logits."""

    name: str
    batch: int = 2
    heads: int = 4
    key_heads: int = 4
    rows: int = 7
    columns: int = 7
    size: int = 8
    value_size: int = 8
    is_causal: bool = False
    mask: str = ""
    scale: float | None = None

    def __str__(self) -> str:
        return self.name

    def make(self, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray, dict[str, Any]]:
        """Queries, keys and values in Keras's layout, a gradient of the output, and the options."""
        rng = np.random.default_rng(seed)
        q = rng.normal(size=(self.batch, self.rows, self.heads, self.size))
        k = rng.normal(size=(self.batch, self.columns, self.key_heads, self.size))
        v = rng.normal(size=(self.batch, self.columns, self.key_heads, self.value_size))
        grad = rng.normal(size=(self.batch, self.rows, self.heads, self.value_size))
        options: dict[str, Any] = {"is_causal": self.is_causal, "scale": self.scale}
        keys = rng.random((self.batch, 1, 1, self.columns)) < 0.7
        keys[0, ..., 0] = True
        pairs = rng.random((self.batch, self.heads, self.rows, self.columns)) < 0.6
        if self.rows > 1:
            pairs[:, :, 1] = False  # a row that sees nothing
        bias = rng.normal(size=(1, self.heads, self.rows, self.columns))
        if self.mask == "keys":
            options["mask"] = keys
        elif self.mask == "blind sample":
            options["mask"] = keys & (np.arange(self.batch) != 1)[:, None, None, None]
        elif self.mask == "heads":
            options["mask"] = rng.random((1, self.heads, 1, self.columns)) < 0.7
        elif self.mask == "samples":
            options["mask"] = (np.arange(self.batch) != 1)[:, None, None, None]
        elif self.mask == "pairs":
            options["mask"] = pairs
        elif self.mask == "additive":
            options["mask"] = np.where(pairs, bias, -np.inf).astype("float32")
        elif self.mask == "bias":
            options["bias"] = bias.astype("float32")
        return [q, k, v], grad, options


CASES = [
    Case("plain"),
    Case("cross", rows=5, columns=11, value_size=5, scale=0.7),
    Case("one query", rows=1),
    Case("one key", columns=1),
    Case("grouped", heads=6, key_heads=2),
    Case("causal", is_causal=True),
    Case("causal, more keys", is_causal=True, rows=5, columns=11),
    Case("causal, more queries", is_causal=True, rows=11, columns=4),
    Case("key padding", mask="keys"),
    Case("causal and key padding", mask="keys", is_causal=True),
    Case("blind sample", mask="blind sample"),
    Case("other keys for other heads", mask="heads"),
    Case("one value for all keys of a sample", mask="samples"),
    Case("arbitrary boolean", mask="pairs"),
    Case("additive with -inf", mask="additive"),
    Case("bias", mask="bias"),
]


@contextlib.contextmanager
def wide() -> Iterator[None]:
    """float64 on JAX, which is float32 by default."""
    if BACKEND == "jax":
        import jax

        with jax.enable_x64(True):
            yield
    else:
        yield


def numpy_draws(spec: Spec, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Draws of a spec, in float32 as Keras makes them."""
    if isinstance(spec, Compose):
        return [numpy_draws(part, shape, rng) for part in spec.parts]
    if isinstance(spec, OneOf):
        return np.float32(rng.random()), [numpy_draws(part, shape, rng) for part in spec.parts]
    if isinstance(spec, Consistency):
        return None
    draw = rng.standard_normal if spec.draws.distribution == "normal" else rng.random
    return np.asarray(draw(spec.draws.shape(*shape), dtype=np.float32), dtype=np.float32)


def in_float64(draws: Any) -> Any:
    if isinstance(draws, list | tuple):
        return type(draws)(in_float64(draw) for draw in draws)
    return None if draws is None else np.asarray(draws, dtype=np.float64)


def value_and_gradients(
    function: Callable[..., Any], arrays: list[np.ndarray], grad: np.ndarray, dtype: str
) -> list[np.ndarray]:
    """The value of `function` at tensors of `dtype`, and the gradients by the backend's own differentiation."""
    tensors = [keras.ops.convert_to_tensor(x, dtype=dtype) for x in arrays]
    weight = keras.ops.convert_to_tensor(grad, dtype=dtype)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            output = function(*tensors)
        grads = tape.gradient(output, tensors, output_gradients=weight)
    elif BACKEND == "jax":
        import jax

        def both(*inputs: Any) -> tuple[Any, Any]:
            value, pullback = jax.vjp(function, *inputs)
            return value, pullback(weight)

        # One compilation instead of one for each operation.
        output, grads = jax.jit(both)(*tensors)
    else:
        import torch

        leaves = [x.detach().requires_grad_() for x in tensors]
        output = function(*leaves)
        grads = torch.autograd.grad(output, leaves, weight)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    return [to_numpy(x) for x in (output, *grads)]


def to_numpy(x: Any) -> np.ndarray:
    """Any tensor as float64; NumPy gets no bfloat16."""
    x = keras.ops.stop_gradient(x)
    narrow = keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(x, "float32") if narrow else x)).astype("float64")


def errors(spec: Spec, case: Case, dtype: str, seed: int = 5) -> dict[str, float]:
    """Relative errors (Frobenius norm) of the output and of the gradients of q, k, v against the oracle."""
    arrays, grad, options = case.make()
    draws = numpy_draws(spec, (case.batch, case.heads, case.rows, case.columns), np.random.default_rng(seed))

    def function(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, spec, draws=draws, **options)

    with wide() if dtype == "float64" else contextlib.nullcontext():
        received = value_and_gradients(function, arrays, grad, dtype)
        # The oracle gets what the dtype can hold.
        *arrays, grad = (to_numpy(keras.ops.convert_to_tensor(x, dtype=dtype)) for x in (*arrays, grad))
    result = reference.attention(
        *(x.swapaxes(1, 2) for x in arrays),
        spec,
        in_float64(draws),
        attn_mask=options.get("mask"),
        bias=options.get("bias"),
        is_causal=case.is_causal,
        scale=case.scale,
    )
    expected = [result.output, *result.gradients(grad.swapaxes(1, 2))[:3]]
    return {
        name: relative_error(have, want.swapaxes(1, 2))
        for name, have, want in zip(("output", "query", "key", "value"), received, expected, strict=True)
    }


def relative_error(have: np.ndarray, want: np.ndarray) -> float:
    assert have.shape == want.shape, (have.shape, want.shape)
    assert np.isfinite(have).all()
    if not np.any(want):
        return float(np.abs(have).max())
    return float(np.linalg.norm(have - want) / np.linalg.norm(want))
