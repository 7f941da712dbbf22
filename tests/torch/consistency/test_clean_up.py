"""Whatever becomes of a pass over several views, the model is as before: one view, no stack, no hooks."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from consistency_models import BATCH, CASES, Classifier, build, floats
from test_training import CONSISTENCY, Checkpointed, gradients, leaves_no_trace, same, task
from torch import Tensor, nn

from attentiondrop.torch import attach, consistency_loss, detach, views

MODES = ["batch", "shared"]
#: None: no activation checkpointing; otherwise whether it is the reentrant kind.
CHECKPOINTS = [None, False, True]
LATE = "*layers.[23].*"
SPEC = "dropkey(p=0.4)"


def model_of(reentrant: bool | None) -> nn.Module:
    model: nn.Module = build("encoder")
    if reentrant is not None:
        model = Checkpointed(model, reentrant)
    attach(model, {LATE: SPEC})
    return model


def example(rows: int = BATCH) -> Tensor:
    return floats(rows, 6, 16).requires_grad_()


class Raising(torch.autograd.Function):
    """The identity, whose backward raises `error`, if there is one."""

    error: BaseException | None = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if Raising.error is not None:
            raise Raising.error
        return gradient


class Broken(Exception):
    pass


def raise_(error: BaseException) -> Any:
    raise error


def first_parameter(model: nn.Module) -> nn.Parameter:
    """One whose gradient comes at the end of the backward pass."""
    return next(p for name, p in model.named_parameters() if "layers.0" in name)


def in_a_parameter(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return first_parameter(model).register_hook(lambda gradient: raise_(Broken())).remove


def interrupted(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return first_parameter(model).register_hook(lambda gradient: raise_(KeyboardInterrupt())).remove


def in_a_function(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Inside a checkpointed block, after which two are still to be recomputed."""
    monkeypatch.setattr(Raising, "error", Broken())
    layer = next(module for name, module in model.named_modules() if name.endswith("layers.2"))
    hook = layer.register_forward_hook(lambda module, args, output: Raising.apply(output))

    def mend() -> None:
        hook.remove()
        monkeypatch.setattr(Raising, "error", None)

    return mend


def in_a_recomputation(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    layer = next(module for name, module in model.named_modules() if name.endswith("layers.2"))

    def broken(*_: Any) -> None:
        if torch._C._current_graph_task_id() >= 0:
            raise Broken

    return layer.register_forward_pre_hook(broken).remove


WAYS = [in_a_parameter, interrupted, in_a_function, in_a_recomputation]


def as_before(model: nn.Module, mode: str, reentrant: bool | None) -> None:
    """Nothing is left in the model, and it computes what a fresh one computes: plainly and with views."""
    leaves_no_trace(model)
    fresh = model_of(reentrant)
    x = example(2 * BATCH)  # as many rows as two views had
    same(gradients(model, lambda: task(model(x))), gradients(fresh, lambda: task(fresh(x))), 0.0)
    leaves_no_trace(model)

    def loss(each: nn.Module) -> Tensor:
        return consistency_loss(each, example(), task, CONSISTENCY, mode).loss

    same(gradients(model, lambda: loss(model)), gradients(fresh, lambda: loss(fresh)), 0.0)
    leaves_no_trace(model)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "way, reentrant",
    # Without checkpointing nothing is recomputed.
    [(way, kind) for way in WAYS for kind in CHECKPOINTS if way is not in_a_recomputation or kind is not None],
)
def test_a_backward_that_raises(
    way: Callable[..., Any], mode: str, reentrant: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(reentrant)
    mend = way(model, monkeypatch)
    torch.manual_seed(1)  # the seed of what follows, too: a plain pass finds generators in states that views had
    result = consistency_loss(model, example(), task, CONSISTENCY, mode)
    leaves_no_trace(model)
    # The error is kept, and with it all frames; the graph is kept, and could be used again.
    with pytest.raises((Broken, KeyboardInterrupt)) as kept:
        result.loss.backward()
    leaves_no_trace(model)
    mend()
    as_before(model, mode, reentrant)
    del kept


@pytest.mark.parametrize("reentrant", CHECKPOINTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_loss_that_is_dropped_or_kept(mode: str, reentrant: bool | None) -> None:
    model = model_of(reentrant)
    consistency_loss(model, example(), task, CONSISTENCY, mode)
    as_before(model, mode, reentrant)
    kept = consistency_loss(model, example(), task, CONSISTENCY, mode)
    as_before(model, mode, reentrant)
    del kept


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_that_raises(mode: str) -> None:
    model = model_of(None)
    with pytest.raises(Broken):
        consistency_loss(model, example(), lambda output: raise_(Broken()), CONSISTENCY, mode)
    as_before(model, mode, None)


@pytest.mark.parametrize("reentrant", CHECKPOINTS)
@pytest.mark.parametrize("mode", MODES)
def test_two_backward_passes(mode: str, reentrant: bool | None) -> None:
    """Kept for a second one, the graph gives the same gradients again; given up, an error that leaves no trace."""
    model = model_of(reentrant)
    if reentrant is None:
        torch.manual_seed(1)
        loss = consistency_loss(model, example(), task, CONSISTENCY, mode).loss
        found = []
        for _ in range(2):
            model.zero_grad()
            loss.backward(retain_graph=True)
            found.append({n: p.grad.clone() for n, p in model.named_parameters()})
        same((loss.detach(), found[0]), (loss.detach(), found[1]), 0.0)
    loss = consistency_loss(model, example(), task, CONSISTENCY, mode).loss
    loss.backward()
    leaves_no_trace(model)
    with pytest.raises(RuntimeError):
        loss.backward()
    as_before(model, mode, reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_backward_inside_of_another(mode: str, reentrant: bool) -> None:
    """A pass of its own in the middle of a backward, from a hook, ends before the outer one has recomputed all."""
    plain = build("encoder")
    models = [plain, Checkpointed(copy.deepcopy(plain), reentrant)]
    found = []
    for model in models:
        attach(model, {LATE: SPEC})
        torch.manual_seed(1)
        loss = consistency_loss(model, example(), task, CONSISTENCY, mode).loss
        layer = next(module for name, module in model.named_modules() if name.endswith("layers.3"))
        waiting = [2]

        def hook(gradient: Tensor) -> None:
            if waiting:
                torch.manual_seed(waiting.pop())
                with torch.enable_grad():
                    consistency_loss(model, example(2), task, CONSISTENCY, mode).loss.backward()

        handle = layer.norm2.weight.register_hook(hook)
        loss.backward()
        handle.remove()
        found.append((loss.detach(), {n.removeprefix("model."): p.grad for n, p in model.named_parameters()}))
        assert not waiting
        leaves_no_trace(model)
    same(*found)


@pytest.mark.parametrize("mode", MODES)
def test_copies_made_in_the_middle(mode: str) -> None:
    """Of a model that runs: the site of a copy, or of a pickle, is in the middle of nothing."""
    model = model_of(None)
    copies: list[Any] = []

    def hook(module: nn.Module, *_: Any) -> None:
        copies.append(copy.deepcopy(module.self_attn))
        copies.append(pickle.loads(pickle.dumps(module.self_attn)))

    model.encoder.layers[3].register_forward_hook(hook)
    views(model, example(), mode=mode)
    assert len(copies) == 2
    for each in copies:
        leaves_no_trace(each)


def test_removed_after_a_backward_that_raised() -> None:
    model = model_of(False)
    first_parameter(model).register_hook(lambda gradient: raise_(Broken()))
    with pytest.raises(Broken):
        consistency_loss(model, example(), task, CONSISTENCY, "shared").loss.backward()
    x = example()
    assert torch.equal(copy.deepcopy(model).eval()(x), model.eval()(x))
    pickle.loads(pickle.dumps(model))
    assert detach(model) == 2
    leaves_no_trace(model)
    torch.testing.assert_close(model.train()(x), model.eval()(x))


class WithParent(Classifier):
    """Its blocks refer to it, as blocks of some libraries do."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.encoder.layers:
            layer.__dict__["parent"] = self


@pytest.mark.parametrize("mode", MODES)
def test_a_model_whose_blocks_refer_to_it_is_collected(mode: str) -> None:
    model: nn.Module | None = WithParent().double()
    attach(model, {CASES["encoder"].late: SPEC})
    consistency_loss(model, example(), task, CONSISTENCY, mode).loss.backward()
    alive = weakref.ref(model)
    model = None
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_that_is_thrown_away_takes_its_graph_with_it(mode: str) -> None:
    model, seen = model_of(None), []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(weakref.ref(ctx))
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    model.encoder.layers[0].register_forward_hook(lambda module, args, output: Noted.apply(output))
    result = consistency_loss(model, example(), task, CONSISTENCY, mode)
    assert seen[0]() is not None
    del result
    gc.collect()
    assert seen[0]() is None


def test_another_thread_makes_ordinary_calls_during_a_backward() -> None:
    """Also where its generator is in the state that the views had."""
    model, found = model_of(None), []

    def plain() -> None:
        torch.manual_seed(1)
        found.append(model(example()).detach())

    def in_a_thread(gradient: Tensor) -> None:
        thread = threading.Thread(target=plain)
        thread.start()
        thread.join()

    first_parameter(model).register_hook(in_a_thread)
    torch.manual_seed(1)
    consistency_loss(model, example(), task, CONSISTENCY, "batch").loss.backward()
    plain()
    assert len(found) == 2 and torch.equal(*found)


def test_the_prefix_follows_a_block_that_is_exchanged() -> None:
    model = model_of(None)
    views(model, example(), mode="shared")
    model.encoder.layers[0] = copy.deepcopy(model.encoder.layers[0])
    gc.collect()
    torch.manual_seed(2)
    one = views(model, example(), mode="shared")
    torch.manual_seed(2)
    torch.testing.assert_close(one, views(model, example(), mode="batch"))
    leaves_no_trace(model)
