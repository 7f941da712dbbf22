"""How large the tensors are that a computation makes."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operator returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(x.numel() for x in tree_leaves(result) if isinstance(x, Tensor))])
        return result
