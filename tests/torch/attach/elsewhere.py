"""Helpers of another package than the modules that call them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F


def attend_elsewhere(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def level_one(*heads: Any) -> Any:
    return level_two(*heads)


def level_two(*heads: Any) -> Any:
    return level_three(*heads)


def level_three(*heads: Any) -> Any:
    return level_four(*heads)


def level_four(*heads: Any) -> Any:
    return attend_elsewhere(*heads)
