"""Classes that torch puts on top of a site, or beneath it: parametrizations here, `fully_shard` in test_distributed.py."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from attentiondrop.torch import attach, detach
from attentiondrop.torch.attach.sites import site_of


class Attention(nn.Module):
    """Its attention is called two functions deep, and its only own parameter is a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 16))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = F.linear(x, self.weight).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return inner(q, k, v).transpose(1, 2).flatten(-2)


def inner(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


class MultiheadAttention(nn.MultiheadAttention):
    pass


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * x

    def right_inverse(self, x: Tensor) -> Tensor:
        return x / 2.0


def run_own(module: nn.Module, seed: int) -> Tensor:
    torch.manual_seed(seed)
    x = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0))
    output: Tensor = module(x)
    return output.detach()


def run_multihead(module: nn.Module, seed: int) -> Tensor:
    torch.manual_seed(seed)
    x = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0))
    output: Tensor = module(x, x, x, need_weights=False)[0]
    return output.detach()


Run = Callable[[nn.Module, int], Tensor]
CASES = [
    pytest.param(Attention, "weight", run_own, id="sdpa"),
    pytest.param(lambda: MultiheadAttention(16, 4, batch_first=True), "in_proj_weight", run_multihead, id="multihead"),
]


def acts(module: nn.Module, run: Run) -> bool:
    return not torch.allclose(run(module.train(), 1), run(module, 2))


#: Attach and parametrize in either order, then undo both in either order.
ORDERS = [
    first + then
    for first, then in itertools.product(
        itertools.permutations(("attach", "parametrize")), itertools.permutations(("detach", "unparametrize"))
    )
]


@pytest.mark.parametrize("make, name, run", CASES)
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_parametrization(make: Callable[[], nn.Module], name: str, run: Run, order: tuple[str, ...]) -> None:
    module = make()
    own, expected = type(module), run(module.eval(), 0)
    for step in order:
        if step == "attach":
            attach(module, "noise(sigma=1.0)")
        elif step == "parametrize":
            parametrize.register_parametrization(module, name, Double())
        elif step == "detach":
            assert detach(module) == 1
        else:
            parametrize.remove_parametrizations(module, name)
        torch.testing.assert_close(run(module.eval(), 0), expected)
        assert acts(module, run) == (site_of(module) is not None), step
    assert type(module) is own and detach(module) == 0


@pytest.mark.parametrize("make, name, run", CASES)
def test_remove_among_several_parametrizations(make: Callable[[], nn.Module], name: str, run: Run) -> None:
    """What was registered and removed while attached is so afterwards."""
    module = make()
    own, expected = type(module), run(module.eval(), 0)
    module.register_parameter("other", nn.Parameter(torch.ones(2)))
    parametrize.register_parametrization(module, name, Double())
    attachment = attach(module, "noise(sigma=1.0)")
    parametrize.register_parametrization(module, "other", Double())
    attachment.remove()
    attachment.remove()
    assert torch.equal(module.other, torch.ones(2)) and parametrize.is_parametrized(module, name)
    again = attach(module, "noise(sigma=1.0)")
    parametrize.remove_parametrizations(module, "other")
    again.remove()
    assert not acts(module, run)
    torch.testing.assert_close(run(module.eval(), 0), expected)
    parametrize.remove_parametrizations(module, name)
    assert type(module) is own


@pytest.mark.parametrize("make, name, run", CASES)
def test_copies_of_a_parametrized_site(make: Callable[[], nn.Module], name: str, run: Run) -> None:
    """torch gives a copy the class of the original, so removing one must not touch that class."""
    module = make()
    attach(module, "noise(sigma=1.0)")
    parametrize.register_parametrization(module, name, Double())
    twin = copy.deepcopy(module)
    assert detach(module) == 1 and not acts(module, run)
    assert acts(twin, run)
    with pytest.raises(RuntimeError, match="Serialization of parametrized modules"):
        pickle.dumps(twin)
    assert detach(twin) == 1 and not acts(twin, run)
