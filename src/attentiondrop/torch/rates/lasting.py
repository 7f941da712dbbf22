"""Tensors that later steps change: `torch.inference_mode`, where someone may sample a model, must not make them."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch


def lasting() -> AbstractContextManager[Any]:
    """Within, tensors are ordinary ones. What inference mode makes could neither be changed nor trained with later."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():  # (a compiler cannot ask for it)
        return contextlib.nullcontext()
    return torch.inference_mode(False)
