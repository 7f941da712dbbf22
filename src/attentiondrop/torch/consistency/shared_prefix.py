"""Run the model once up to the first attached site, and from there on for all views.

The batch is repeated at the input of the first *block* that contains a site. A block is an element of a list of layers
(`blocks`, `encoder.layer`, `h`, ...). Other tensors that later modules get with the batch of one view (masks, position
ids, the inputs of a decoder) are repeated at the inputs of those modules. Which block is the first is found out while
the model runs.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..attach.attend import find_stack
from ..attach.sites import site_of
from ..nested_values import change_cache, is_cache, map_tensors
from .stacked_batch import Stack, StackError, is_batched, is_folded

#: The key of our hooks in a module's tables. It never changes, so that a compiled graph stays valid in the next step.
KEY = -0xA77D


class SharedPrefix:
    """The hooks that repeat the batch for all views. Built once for a model and its sites, entered in each pass.

    It lives from step to step. It must not keep the model alive, so it holds weak references to the modules.
    """

    def __init__(self, model: nn.Module) -> None:
        names = {module: name for name, module in model.named_modules()}
        # The blocks that contain a site; the first one that is called repeats the batch.
        blocks = {_block(model, name) for module, name in names.items() if site_of(module) is not None}
        if not blocks:
            raise StackError(
                'mode: "shared" expected attached sites, found none, so it is unknown where the views part: attach '
                'first, or use mode="batch"'
            )
        above = {parent for block in blocks for parent in _above(model, names[block])}
        watched = [module for module in _watched(model, above) if module is not model]
        # The names of positional arguments are read here, because a compiler cannot read them.
        self._hooks = [
            (weakref.ref(module), self._hook(names[module], _parameters(module), module in blocks))
            for module in watched
        ]
        self.stacks: tuple[Stack, ...] = ()
        #: Views and batch size of the stack that uses the hooks now.
        self.views = 1
        self.batch = 0
        #: Whether the running forward pass has reached the first block, where the views part.
        self.parted = False
        self._repeated: dict[Any, tuple[Tensor, Tensor]] = {}

    @property
    def is_whole(self) -> bool:
        """Whether all modules with hooks still exist."""
        return all(module() is not None for module, _ in self._hooks)

    def enter(self, stack: Stack) -> None:
        """Install the hooks for the time of a pass."""
        self.stacks = (*self.stacks, stack)
        self.views, self.batch = stack.views, stack.batch
        if not stack.replaying:
            self._start()
        for module, hook in self._alive():
            module._forward_pre_hooks[KEY] = hook
            module._forward_pre_hooks_with_kwargs[KEY] = True

    def leave(self, stack: Stack) -> None:
        """Remove the hooks, unless another stack still needs them."""
        self.stacks = tuple(other for other in self.stacks if other is not stack)
        if not self.stacks:
            self.views = 1
            self._start()
            for module, _ in self._alive():
                module._forward_pre_hooks.pop(KEY, None)
                module._forward_pre_hooks_with_kwargs.pop(KEY, None)

    def _start(self) -> None:
        self.parted = False
        self._repeated.clear()

    def _alive(self) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
        return ((module, hook) for ref, hook in self._hooks if (module := ref()) is not None)

    def _hook(self, name: str, parameters: Sequence[str], is_block: bool) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._is_single(name, is_block, args, kwargs):
                return None
            stacked = [
                self._stacked(x, parameters[index] if index < len(parameters) else "") for index, x in enumerate(args)
            ]
            return tuple(stacked), {key: self._stacked(x, key) for key, x in kwargs.items()}

        return hook

    def _is_single(self, name: str, is_block: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the module is called before the views part, or for no stack."""
        if torch.compiler.is_compiling():
            self.parted = self.parted or is_block
            return not self.parted
        if not self.stacks:
            return True
        if not self.stacks[-1].replaying:
            self.parted = self.parted or is_block
            if not self.parted:
                return True
        device = next((x.device for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), torch.device("cpu"))
        stack = find_stack(self.stacks, name, device)
        if stack is None:
            return True
        self.views, self.batch = stack.views, stack.batch
        return False

    def _stacked(self, value: Any, name: str) -> Any:
        if is_cache(value):
            change_cache(value, self._repeat, name)
            return value
        return map_tensors(value, self._repeat, name)

    def _repeat(self, name: str, x: Tensor) -> Tensor:
        if is_folded(name, x, self.batch):
            raise StackError(
                f'mode: "shared" cannot tell whether {name} of shape {list(x.shape)} has been repeated already: use '
                'mode="batch", or a mask with a separate batch dimension'
            )
        if not is_batched(name, x, self.batch):
            return x
        if torch.compiler.is_compiling() or not self.stacks or self.stacks[-1].replaying:
            return torch.cat([x] * self.views)
        # A mask goes to every layer: repeat it once. Repeats with and without gradients (checkpointing) differ.
        key = (id(x), torch.is_grad_enabled())
        if key not in self._repeated:
            self._refuse_mixed(name, x)
            self._repeated[key] = (x, torch.cat([x] * self.views))
            self.stacks[-1].note(self._repeated[key][1])
        return self._repeated[key][1]

    def _refuse_mixed(self, name: str, x: Tensor) -> None:
        """Refuse a tensor that has the batch of one view, but was computed from all views.

        A model may pick rows, or pool them, by the size of its inputs. What it gets belongs to no view, or to one.
        """
        if self.stacks[-1].is_after(x):
            raise StackError(
                f'mode: "shared" expected the batch of all views ({self.stacks[-1].size}) behind the first attached '
                f"block, received {name or 'an input of a module'} of shape {list(x.shape)}: the model picks "
                'or combines rows by the size of its inputs; use mode="batch", which repeats the inputs themselves'
            )


_prefixes: weakref.WeakKeyDictionary[nn.Module, tuple[Any, SharedPrefix]] = weakref.WeakKeyDictionary()


def shared_prefix(model: nn.Module) -> SharedPrefix:
    """The prefix of `model`; it stays the same one while the modules, and which of them are attached, stay the same."""
    modules = [(id(module), site_of(module) is not None) for module in model.modules()]
    known = _prefixes.get(model)
    if known is None or known[0] != modules or not known[1].is_whole:
        known = _prefixes[model] = (modules, SharedPrefix(model))
    return known[1]


def _block(model: nn.Module, name: str) -> nn.Module:
    """The block around the site `name`: the outermost element of a list of at least two modules of one class.

    It must be the outermost, because inside a block a residual connection may need the batch of one view.
    """
    *parents, _ = chain = [*_above(model, name), model.get_submodule(name)]
    lists = [(parent, child) for parent, child in zip(parents, chain[1:], strict=True) if _is_list(parent)]
    for parent, child in lists:
        if sum(type(other).__name__ == type(child).__name__ for other in parent.children()) > 1:
            return child
    for parent, child in lists:
        if isinstance(parent, nn.ModuleList):
            return child
    raise StackError(
        f'mode: "shared" cannot tell where the views part, because the site {name or "(the model itself)"!r} is in no '
        'list of layers (an nn.ModuleList, or an nn.Sequential with two of one class): use mode="batch"'
    )


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.Sequential)


def _above(model: nn.Module, name: str) -> list[nn.Module]:
    """The modules around `name`, from the model inwards."""
    if not name:
        return []
    parts = name.split(".")
    return [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts))]


def _watched(module: nn.Module, above: set[nn.Module]) -> list[nn.Module]:
    """The modules whose inputs may still have the batch of one view: all modules that are not inside a block."""
    found = [] if isinstance(module, nn.ModuleList | nn.ModuleDict) else [module]
    if module in above or not found:
        for child in module.children():
            found += _watched(child, above)
    return found


def _parameters(module: nn.Module) -> list[str]:
    """The names of the positional parameters of its forward."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, p in inspect.signature(module.forward).parameters.items() if p.kind in positional]
