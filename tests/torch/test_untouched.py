"""Which calls of an operator skip the dispatcher of torch. Here they give another value, so that it shows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from attentiondrop.torch.untouched import call_directly, is_transformed, is_untouched, is_watched

X = torch.zeros(2)


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "seen" if "way" in str(func) else func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] + 4 if "way" in str(func) else func(*args, **(kwargs or {}))


class Other(Tensor):
    pass


@pytest.fixture(scope="module")
def operator() -> Iterator[Callable[..., Tensor]]:
    library = torch.library.Library("attentiondrop", "FRAGMENT")
    library.define("way(Tensor x, int number=0) -> Tensor")
    library.impl("way", lambda x, number=0: x + 1, "CompositeExplicitAutograd")
    torch.library.register_fake("attentiondrop::way", lambda x, number=0: torch.empty_like(x), lib=library)
    torch.library.register_autograd("attentiondrop::way", lambda ctx, grad: (3 * grad, None), lib=library)
    call_directly("way", lambda x, number=0: x + 2)
    library.define("unnamed(Tensor x, int number=0) -> Tensor")
    library.impl("unnamed", lambda x, number=0: x + 1, "CompositeExplicitAutograd")
    call_directly("unnamed", lambda x, number=0, /: x + 2)
    yield torch.ops.attentiondrop.way.default
    library._destroy()


def answers() -> tuple[bool, bool, bool]:
    return is_untouched(), is_watched(), is_transformed()


def test_everybody_who_watches_is_noticed() -> None:
    found: list[tuple[bool, bool, bool]] = []

    def asks(x: Tensor) -> Tensor:
        found.append(answers())
        return x * 1

    asks(X)
    with Operations():
        asks(X)
    torch.func.vmap(asks)(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing is deprecated
        torch.jit.trace(asks, X, check_trace=False)
    asks(X)
    plain = (True, False, False)
    assert found == [plain, (False, True, False), (False, True, True), (False, True, False), plain]


def test_a_compiler_sees_all_operations() -> None:
    """It would keep an answer that holds only while it traces."""
    compiled = torch.compile(lambda x: x + 2 * is_untouched() + is_transformed(), backend="eager", fullgraph=True)
    assert compiled(X).tolist() == [0.0, 0.0]


def test_nobody_watches(operator) -> None:
    with torch.no_grad():
        assert operator(X).tolist() == operator(X, 5).tolist() == operator(torch.nn.Parameter(X)).tolist() == [2.0, 2.0]
        assert operator(X, number=1).tolist() == [2.0, 2.0], "Inductor names arguments that have a default"


@pytest.mark.parametrize("watching", [torch.enable_grad, torch.profiler.profile, forward_ad.dual_level], ids=str)
def test_somebody_watches(operator, watching: Callable[[], AbstractContextManager[Any]]) -> None:
    with torch.no_grad(), watching():
        assert operator(X).tolist() == [1.0, 1.0]


def test_modes_see_the_operator(operator) -> None:
    with torch.no_grad(), Functions():
        assert operator(X) == "seen"
    with torch.no_grad(), Operations():
        assert operator(X).tolist() == [4.0, 4.0]


def test_transformed_or_other_tensors(operator) -> None:
    with torch.no_grad():
        assert torch.func.functionalize(operator)(X).tolist() == [1.0, 1.0]
        assert operator(X.as_subclass(Other)).tolist() == [1.0, 1.0]
        assert operator(X.to("meta")).is_meta
        assert torch.ops.attentiondrop.unnamed.default(X, number=1).tolist() == [1.0, 1.0], "it has no such argument"


def test_gradients_are_those_of_the_operator(operator) -> None:
    x = X.clone().requires_grad_()
    operator(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]


@pytest.mark.slow
def test_compiled_code_skips_the_dispatcher(operator) -> None:
    """Should a version of torch not do it, that only costs time; but we want to know."""
    x = X.clone().requires_grad_()
    found = torch.compile(lambda x: operator(x * 1.5))(x)
    assert found.tolist() == [2.0, 2.0]
    found.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [4.5, 4.5]
