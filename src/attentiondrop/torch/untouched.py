"""Whether anybody watches what torch computes; calls of our operators that skip the dispatcher if nobody does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def is_untouched() -> bool:
    """Whether torch simply runs the code: nobody traces, transforms or watches its operations.

    Compilers, `torch.func`, fake tensors and modes such as that of selective checkpointing must see all operations.
    """
    return not torch.compiler.is_compiling() and not is_watched()


def is_transformed() -> bool:
    """Whether a transform of functions (`torch.func`) runs. Inside of it, nothing can be kept in place."""
    return not torch.compiler.is_compiling() and _transform_of_functions() is not None


def is_watched() -> bool:
    """Whether somebody transforms or watches the operations, for code that no compiler traces."""
    return (
        _count_of_modes() != 0  # those that see operations
        or _transform_of_functions() is not None
        or _jit_trace() is not None
    )


# (Names of this module are found faster, and every call asks.)
_count_of_modes = torch._C._len_torch_dispatch_stack
_transform_of_functions = torch._C._functorch.peek_interpreter_stack
_jit_trace = torch._C._get_tracing_state


def call_directly(operator: str, implementation: Callable[..., Any]) -> None:
    """Let `torch.ops.attentiondrop.<operator>.default` call its implementation itself where nobody watches.

    Compiled code calls operators by this name. The way through the dispatcher takes longer than most of our kernels: it
    turns all arguments into its own values and back, twice if the operator has a gradient. Compiled code asks for no
    gradient, since its backward is compiled as well.

    `_op` is what the overload of torch 2.0 to 2.15 calls. Should a later one not look at it, calls only get slower.
    """
    overload = getattr(torch.ops.attentiondrop, operator).default
    dispatched = overload._op
    kinds = inspect.signature(implementation).parameters.values()
    named = frozenset(parameter.name for parameter in kinds if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)

    def direct(*args: Any, **kwargs: Any) -> Any:
        if (
            # (For a gradient, a tangent, a mode of functions, or the names in a profile.)
            torch.is_grad_enabled()
            or forward_ad._current_level >= 0
            or torch._C._is_torch_function_mode_enabled()
            or torch.autograd.profiler._is_profiler_enabled
            or is_watched()
            or not _PLAIN.issuperset(map(type, args))
            # (Inductor hands over by name what has a default.)
            or (kwargs and not (named.issuperset(kwargs) and _PLAIN.issuperset(map(type, kwargs.values()))))
        ):
            return dispatched(*args, **kwargs)
        return implementation(*args, **kwargs)

    overload._op = direct


#: Types of arguments that nobody has changed. A tensor of another type may mean something else by the same operation.
_PLAIN = frozenset({Tensor, torch.nn.Parameter, type(None), str, bool, int, float, list})
