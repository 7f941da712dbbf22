"""Keras's own tests of the layers that ours stand in for, run on ours: same shapes, masks, errors.

They come with the installed Keras. The test modules find the layers as `layers.MultiHeadAttention`, so each module gets
a namespace that holds ours instead.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

import keras
import pytest

import attentiondrop.keras as ak

MODULES = {
    "keras.src.layers.attention.multi_head_attention_test": ("MultiHeadAttention", ak.MultiHeadAttention),
    "keras.src.layers.attention.grouped_query_attention_test": ("GroupedQueryAttention", ak.GroupedQueryAttention),
}

#: Not for the path in training: they count seed generators, save a class, or ask for what blind rows give elsewhere.
STRUCTURE = ("basics", "lora", "quantize", "high_dim", "flash")
#: Tens of seconds of compilation on JAX, for what the other backends show as well.
SLOW = ("basics", "lora", "quantize", "high_dim")


class Layers(types.SimpleNamespace):
    """`keras.layers` with one layer exchanged."""

    def __getattr__(self, name: str) -> Any:
        return getattr(keras.src.layers, name)


def in_training(ours: Any) -> Any:
    """The layer with a regulariser that drops nothing, always in training: our path through logits must be theirs."""

    class InTraining(ours):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{"attention_drop": "hard(p=0.0,k=2)", **kwargs})

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **{"training": True, **kwargs})

    return InTraining


def cases() -> list[Any]:
    found = []
    for module, (name, ours) in MODULES.items():
        for way, layer, excluded in (("eval", ours, ()), ("training", in_training(ours), STRUCTURE)):
            if keras.backend.backend() == "jax":
                # Eval is the stock code; what it does with masks and shapes would be compiled for nothing.
                excluded = (*excluded, *SLOW)
                if way == "eval":
                    excluded = (*excluded, "mask", "causal", "symbolic", "compute", "attention_axes", "window")
            for attribute in vars(importlib.import_module(module)).values():
                if isinstance(attribute, type) and attribute.__module__ == module:
                    methods = sorted(method for method in dir(attribute) if method.startswith("test_"))
                    found += [
                        pytest.param(attribute, method, {name: layer}, id=f"{name}.{method}-{way}")
                        for method in methods
                        if not any(word in method for word in excluded)
                    ]
    return found


@pytest.mark.no_cover
@pytest.mark.filterwarnings("ignore::UserWarning:keras")
@pytest.mark.parametrize("case, method, exchanged", cases())
def test_stock_behaviour(case: Any, method: str, exchanged: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module(case.__module__), "layers", Layers(**exchanged))
    instance = case(method)
    instance.setUp()
    getattr(instance, method)()
