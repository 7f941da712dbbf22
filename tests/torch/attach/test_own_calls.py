"""Forwards that make all calls of their attention themselves run as a copy; all others under a function mode."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import normalize, scaled_dot_product_attention
from torch.nn.functional import scaled_dot_product_attention as renamed
from torch.utils.checkpoint import checkpoint

import attentiondrop as ad
from attentiondrop.torch import attach
from attentiondrop.torch.attach import sdpa
from attentiondrop.torch.attach.own_calls import makes_own_calls
from attentiondrop.torch.attach.sites import site_of
from tests.torch.compiler import needs_compiler

SPEC = ad.HardMasking(p=0.5, k=3)
BLUR = ad.BlurSmoothing(1.0, sigma_min=1.0)
#: A global that `UsesGlobal` reads.
FACTOR = 1.0
TABLE = {"sdpa": F.scaled_dot_product_attention}


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.sizes, self.on = nn.Linear(16, 48), (4, -1), True
        self.stored: Any = None
        self.inner: nn.Module = nn.Identity()

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, *self.sizes)).permute(2, 0, 3, 1, 4)
        return q, k, v


class Functional(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return F.scaled_dot_product_attention(q, k, v) if self.on else torch.softmax(q @ k.mT, -1) @ v


class Whole(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return torch.nn.functional.scaled_dot_product_attention(torch.relu(q), k, F.relu(v))


class Imported(Base):
    def forward(self, x: Tensor) -> Tensor:
        return renamed(*self.heads(x)) + scaled_dot_product_attention(*self.heads(x))


class UsesGlobal(Base):
    def forward(self, x: Tensor) -> Tensor:
        return harmless(F.scaled_dot_product_attention(*self.heads(x))) * FACTOR


class InLambda(Base):
    def forward(self, x: Tensor) -> Tensor:
        attend = lambda: F.scaled_dot_product_attention(*self.heads(x))  # noqa: E731
        return attend()


class UsesMath(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return F.scaled_dot_product_attention(normalize(q, dim=-1), k, v, scale=math.sqrt(4))


class Recursive(Base):
    def forward(self, x: Tensor) -> Tensor:
        return doubled(F.scaled_dot_product_attention(*self.heads(x)), 3)


def doubled(x: Tensor, times: int) -> Tensor:
    return doubled(2 * x, times - 1) if times else x


def harmless(x: Tensor) -> Tensor:
    return x * 2


def helper(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


class InHelper(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return helper(*self.heads(x)) + F.scaled_dot_product_attention(*self.heads(x))


class InMethod(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return self.other(x) + F.scaled_dot_product_attention(*self.heads(x))

    def other(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*self.heads(x))


class InSuper(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.scaled_dot_product_attention(*self.heads(x))


class InSubmodule(Base):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Functional()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + F.scaled_dot_product_attention(*self.heads(x))


class Inner(nn.Module):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class InMethodOfSubmodule(Base):
    def __init__(self) -> None:
        super().__init__()
        self.inner: Inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return self.inner.attend(q, k, v) + F.scaled_dot_product_attention(q, k, v).mean()


class InMultihead(Base):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x)[0].sum() + F.scaled_dot_product_attention(*self.heads(x))


class InAttribute(Base):
    def __init__(self) -> None:
        super().__init__()
        self.stored = helper

    def forward(self, x: Tensor) -> Tensor:
        return self.stored(*self.heads(x)) + F.scaled_dot_product_attention(*self.heads(x))


class InTable(Base):
    def forward(self, x: Tensor) -> Tensor:
        return TABLE["sdpa"](*self.heads(x)) + F.scaled_dot_product_attention(*self.heads(x))


class ByName(Base):
    def __init__(self) -> None:
        super().__init__()
        self.stored = helper

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, "sto" + "red")(*self.heads(x)) + F.scaled_dot_product_attention(*self.heads(x))


class GivenAway(Base):
    def forward(self, x: Tensor) -> Tensor:
        functions = F
        return functions.scaled_dot_product_attention(*self.heads(x)) + F.scaled_dot_product_attention(*self.heads(x))


class ByImport(Base):
    def forward(self, x: Tensor) -> Tensor:
        from torch.nn.functional import scaled_dot_product_attention as other

        return other(*self.heads(x)) + F.scaled_dot_product_attention(*self.heads(x))


class Checkpointed(Base):
    def forward(self, x: Tensor) -> Tensor:
        extra: Tensor = checkpoint(self.heads, x, use_reentrant=False)[0]
        return extra + F.scaled_dot_product_attention(*self.heads(x))


class OtherCheckpoint(Base):
    def forward(self, x: Tensor) -> Tensor:
        extra: Tensor = torch.utils.checkpoint.checkpoint(harmless, x, use_reentrant=False)
        return extra.sum() + F.scaled_dot_product_attention(*self.heads(x))


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return helper(x, x, x)


class InFunction(Base):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return Own.apply(q.detach()) + F.scaled_dot_product_attention(q, k, v)


OWN = [Functional, Whole, Imported, UsesGlobal, InLambda, UsesMath, Recursive]
OTHERS = [
    InHelper, InMethod, InSuper, InSubmodule, InMethodOfSubmodule, InMultihead, InAttribute, InTable, ByName, GivenAway,
    ByImport, Checkpointed, OtherCheckpoint, InFunction,
]  # fmt: skip


@pytest.mark.parametrize("cls", OWN)
def test_own_calls(cls: type[nn.Module]) -> None:
    assert makes_own_calls(cls(), cls)


@pytest.mark.parametrize("cls", OTHERS)
def test_what_may_be_called_elsewhere(cls: type[nn.Module]) -> None:
    assert not makes_own_calls(cls(), cls)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "beit_base_patch16_224"])
def test_models_of_timm(name: str) -> None:
    """A new release may change their code; then this test says that they have become slower."""
    with torch.device("meta"):
        model = timm.create_model(name)
    modules = [module for module in model.modules() if "Attention" in type(module).__name__]
    assert modules and all(makes_own_calls(module, type(module)) for module in modules)


def run(module: nn.Module, seed: int = 3) -> list[Tensor]:
    x = torch.linspace(-1, 1, 2 * 7 * 16).view(2, 7, 16).requires_grad_()
    torch.manual_seed(seed)
    output = module(x)
    return [output, *torch.autograd.grad(output.square().sum(), [x, *module.parameters()])]


@pytest.mark.parametrize("cls", [*OWN, "timm"])
def test_the_copy_computes_what_the_mode_does(cls: Any) -> None:
    torch.manual_seed(0)
    module = timm.layers.Attention(16, 4, qkv_bias=True) if cls == "timm" else cls()
    attach(module, SPEC)
    site = site_of(module)
    assert site is not None and site.own_calls is None
    found = run(module)
    assert site.own_calls
    site.own_calls = False
    expected = run(module)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    module.eval()
    assert not torch.equal(found[0], run(module)[0])


def test_only_the_mode_is_entered_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    enter = sdpa.PerturbSdpa.__enter__
    monkeypatch.setattr(sdpa.PerturbSdpa, "__enter__", lambda mode: (entered.append(mode.cls), enter(mode))[1])
    for cls in (Functional, InHelper):
        module = cls()
        attach(module, SPEC)
        run(module)
    assert set(entered) == {"InHelper"}


def test_globals_are_those_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = UsesGlobal()
    attach(module, SPEC)
    before = run(module)[0]
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    assert torch.equal(run(module)[0], 4 * before)
    monkeypatch.setitem(globals(), "harmless", lambda x: x * 4)
    assert torch.equal(run(module)[0], 8 * before)


def test_another_sdpa_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries exist that put their own function in the place of SDPA; then nothing would be perturbed."""
    module = Functional()
    attach(module, SPEC)
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v: v)
    with pytest.raises(ad.AttachError, match="nothing was perturbed"):
        run(module)


def test_another_forward_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class may get another forward after `attach`."""
    module = Functional()
    attach(module, SPEC)
    before = run(module)[0]

    def forward(self: Base, x: Tensor) -> Tensor:
        return 2 * F.scaled_dot_product_attention(*self.heads(x))

    monkeypatch.setattr(Functional, "forward", forward)
    assert torch.equal(run(module)[0], 2 * before)


def test_another_process_reads_the_code_again() -> None:
    """It may have another version of the module."""
    module = Functional()
    attach(module, SPEC)
    before = run(module)[0]
    twin = pickle.loads(pickle.dumps(module))
    site = site_of(twin)
    assert site is not None and site.own_calls is None
    assert torch.equal(run(twin)[0], before) and site.own_calls


def test_a_branch_without_attention() -> None:
    module = Functional()
    attach(module, SPEC)
    run(module)
    module.on = False
    with pytest.raises(ad.AttachError, match="nothing was perturbed"):
        run(module)
    assert sdpa._running.site is None


class Escaping(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.stored = lambda: F.scaled_dot_product_attention(*self.heads(x))
        return F.scaled_dot_product_attention(*self.heads(x))


def test_a_call_after_the_forward() -> None:
    module = Escaping()
    attach(module, SPEC)
    run(module)
    with pytest.raises(ad.AttachError, match="after its forward had returned"):
        module.stored()


def test_copies_have_sites_of_their_own() -> None:
    module = Functional()
    attach(module, SPEC)
    twin = copy.deepcopy(module)
    site = site_of(twin)
    assert site is not None and site.driven is None
    site.spec = BLUR
    before = run(module)[0]
    assert not torch.equal(run(twin)[0], before)
    assert torch.equal(run(module)[0], before)


def test_threads_do_not_mix_their_sites() -> None:
    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            barrier.wait()  # both forwards have begun
            return x

    barrier = threading.Barrier(1)
    modules = [Functional(), Functional()]
    for module, spec in zip(modules, (ad.HardMasking(p=0.0, k=3), BLUR), strict=True):
        module.qkv = nn.Sequential(module.qkv, Waits())
        attach(module, spec)
    x = torch.randn(1, 5, 16)
    expected = [module(x) for module in modules]
    barrier = threading.Barrier(2)
    found: dict[int, Tensor] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: modules[n](x)})) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[n], expected[n]) for n in (0, 1))


class Breaks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x


class Breaking(Base):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Breaks()

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*self.heads(self.inner(x)))


@needs_compiler
@pytest.mark.parametrize("cls", [Functional, Breaking])
def test_compiled(cls: type[nn.Module]) -> None:
    """Where the compiler gives up, it runs the forward as it is."""
    module = cls()
    attach(module, SPEC)
    expected = run(module)
    site = site_of(module)
    assert site is not None and site.own_calls
    torch._dynamo.reset()
    found = run(torch.compile(module))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
