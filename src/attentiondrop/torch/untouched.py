"""Whether anybody watches what torch computes; calls of our operators that skip the dispatcher if nobody does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def is_untouched() -> bool:
    """Whether torch simply runs the code: nobody traces, transforms or watches its operations.

    Compilers, `torch.func`, fake tensors and modes such as that of selective checkpointing must see all operations.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
    )


def call_directly(operator: str, implementation: Callable[..., Any]) -> None:
    """Let `torch.ops.attentiondrop.<operator>.default` call its implementation itself where nobody watches.

    Compiled code calls operators by this name. The way through the dispatcher takes longer than most of our kernels: it
    turns all arguments into its own values and back, twice if the operator has a gradient. Compiled code asks for no
    gradient, since its backward is compiled as well.

    `_op` is what the overload of torch 2.0 to 2.15 calls. Should a later one not look at it, calls only get slower.
    """
    overload = getattr(torch.ops.attentiondrop, operator).default
    dispatched = overload._op

    def direct(*args: Any, **kwargs: Any) -> Any:
        if (
            # (For a gradient, a tangent, a mode of functions, or the names in a profile.)
            torch.is_grad_enabled()
            or forward_ad._current_level >= 0
            or torch._C._is_torch_function_mode_enabled()
            or torch.autograd.profiler._is_profiler_enabled
            or not is_untouched()
            or kwargs
            or not _PLAIN.issuperset(map(type, args))
        ):
            return dispatched(*args, **kwargs)
        return implementation(*args)

    overload._op = direct


#: Types of arguments that nobody has changed. A tensor of another type may mean something else by the same operation.
_PLAIN = frozenset({Tensor, torch.nn.Parameter, type(None), str, bool, int, float, list})
