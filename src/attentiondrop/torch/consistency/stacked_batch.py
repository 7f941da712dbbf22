"""A stack, which is a batch that holds several views: how it is built, how sites know of it, how it is split again.

Views lie one after the other along the first dimension: view 0 of all samples, then view 1 of all samples, ...

Activation checkpointing runs parts of the model a second time, in the backward pass, when the call that stacked the
views has returned. So the outputs get an autograd node (`_Return`) that enters the stack again when a gradient arrives.
The stack then stays entered until this backward pass ends or raises (`_Replay`). The same backward pass may recompute
other calls of the model, too (a plain pass, other views). Checkpointing restores the state of the random generator, so
that state tells whose call it is: a call belongs to the stack only if its forward pass made that call in that state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from ...errors import AttentionDropError
from ..attach.sites import Site
from ..nested_values import Change, map_tensors

#: Argument names of `nn.Transformer` and others for masks [rows, keys] or [batch * heads, rows, keys].
_MASKS = {"mask", "src_mask", "tgt_mask", "memory_mask", "attn_mask"}
#: Arguments whose first dimension is never the batch.
_NEVER = {"cache_position", "rope"}
#: How the names of outputs begin that compare all images (or sounds) of a batch with all its texts, as in CLIP.
_PAIRS = "logits_per_"


def is_batched(name: str, x: Tensor, batch: int) -> bool:
    """Whether the first dimension of the argument `name` is the batch."""
    if x.dim() == 0 or x.shape[0] != batch or name in _NEVER:
        return False
    return not (name in _MASKS and x.dim() == 2 and x.shape[0] == x.shape[1])


def is_folded(name: str, x: Tensor, batch: int) -> bool:
    """Whether the argument is a mask whose first dimension holds batch and heads."""
    return name in _MASKS and x.dim() == 3 and x.shape[0] > batch and x.shape[0] % batch == 0


class Entry(Protocol):
    """Repeats the batch inside the model while it runs (`SharedPrefix`)."""

    def enter(self, stack: Stack) -> None:
        """Install hooks in the model for this stack."""

    def leave(self, stack: Stack) -> None:
        """Remove the hooks for this stack, if it has any."""


class StackError(AttentionDropError):
    """Views that cannot be stacked in this model."""


class Stack:
    """`views` copies of a batch of size `batch`, stacked. Entered for the forward pass, and again for its backward."""

    def __init__(self, views: int, batch: int, sites: Sequence[Site], entry: Entry | None = None) -> None:
        self.views = views
        self.batch = batch
        self.sites = sites
        self.entry = entry
        self.replaying = False
        self._seen: set[Any] = set()
        #: Autograd nodes of tensors that hold all views, in the running forward pass.
        self._nodes: set[Any] = set()

    @property
    def size(self) -> int:
        """The size of the stacked batch."""
        return self.views * self.batch

    def __enter__(self) -> Stack:
        try:
            for site in self.sites:
                _set_stacks(site, (*site.stacks, self))
            if self.entry is not None:
                self.entry.enter(self)
        except BaseException:  # an interrupt: `__exit__` would not be called
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        """Remove the stack from the sites and from `entry`. A second call does nothing."""
        self._nodes.clear()
        for site in self.sites:
            _set_stacks(site, tuple(stack for stack in site.stacks if stack is not self))
        if self.entry is not None:
            self.entry.leave(self)

    def repeat(self, name: str, x: Tensor) -> Tensor:
        """`x` repeated for all views, if its first dimension is the batch; otherwise `x`."""
        batched = is_batched(name, x, self.batch) or is_folded(name, x, self.batch)
        return torch.cat([x] * self.views) if batched else x

    def split(self, output: Any, labels: str | None = None) -> tuple[Any, ...]:
        """The output of each view. A tensor whose first dimension is not the stacked batch goes to all views.

        Of the comparisons of all samples with all samples, a view gets those among its own samples.

        `labels` is the name of an input that the model may have computed a loss from.
        """
        parts: dict[int, tuple[Tensor, ...]] = {}

        def note(name: str, x: Tensor) -> Tensor:
            if name.startswith(_PAIRS) and x.shape == (self.size, self.size):
                pairs = x.reshape(self.views, self.batch, self.views, self.batch)
                parts[id(x)] = tuple(pairs[view, :, view] for view in range(self.views))
            elif x.dim() > 0 and x.shape[0] == self.size:
                parts[id(x)] = x.unflatten(0, (self.views, self.batch)).unbind(0)
            elif x.dim() == 0 and (name == "loss" or (labels is not None and x.requires_grad)):
                given = "" if labels is None else f" ({labels!r} is among the inputs)"
                raise StackError(
                    f"inputs: expected no labels, received a model output with one loss over all views{given}: "
                    'compute the loss in task_loss, or use mode="sequential"'
                )
            return x

        map_tensors(output, note)
        if not parts:
            raise StackError(
                f"the model's output has no tensor with the {self.size} rows of {self.views} views of {self.batch} "
                'samples: use mode="sequential"'
                + ("" if self.entry is None else ', or mode="batch", which repeats the inputs themselves')
            )

        def part(view: int) -> Change:
            return lambda name, x: parts[id(x)][view] if id(x) in parts else x

        return tuple(map_tensors(output, part(view)) for view in range(self.views))

    def watch(self, output: Any) -> Any:
        """The output, with a node that enters the stack again when a gradient arrives."""
        return map_tensors(output, lambda name, x: _Return.apply(x, self) if x.requires_grad else x)

    def replay(self) -> None:
        """Enter the stack until the running backward pass is over."""
        if not self.replaying:
            self.replaying = True
            torch.autograd.Variable._execution_engine.queue_callback(_Replay(self))
            self.__enter__()

    def finish(self) -> None:
        """Leave the stack; the opposite of `replay`."""
        self.replaying = False
        self._leave()

    def belongs(self, place: Any, device: torch.device) -> bool:
        """Whether a call belongs to the stack: in its forward pass all do, in a backward pass those it has seen."""
        if self.replaying and torch._C._current_graph_task_id() < 0:
            return False  # another thread runs the backward pass; this thread makes an ordinary call
        key = (place, _state(device))
        if not self.replaying:
            self._seen.add(key)
        return key in self._seen

    def check(self, site: Site, query: Tensor) -> None:
        """Refuse queries of a call of this stack that do not hold all views. Note those that do."""
        if query.shape[0] % self.size:
            raise StackError(
                f"{site.name or 'the model'}: expected a batch of {self.size} ({self.views} views of {self.batch} "
                f"samples) as the first dimension of the queries, received {list(query.shape)}: the batch must come "
                'first in the inputs and be kept together; use mode="sequential" otherwise'
            )
        self.note(query)

    def note(self, x: Tensor) -> None:
        """Note that `x` holds all views. (A tensor without a gradient leaves no trace.)"""
        if x.grad_fn is not None and not self.replaying:
            self._nodes.add(x.grad_fn)

    def is_after(self, x: Tensor) -> bool:
        """Whether `x` was computed from a tensor that holds all views."""
        return any(node in self._nodes for node in _nodes_before(x))


def _set_stacks(site: Site, stacks: tuple[Stack, ...]) -> None:
    # A compiled graph reads only `views`, and guards on it.
    site.stacks, site.views = stacks, stacks[-1].views if stacks else 1


class _Replay:
    """Tells a stack that a backward pass is over.

    The pass calls its callbacks only if it succeeds. But it owns them in any case, and nothing else owns this object.
    So `__del__` runs when the pass is over, also if it raised.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    def __call__(self) -> None:
        self.stack.finish()

    def __del__(self) -> None:
        self.stack.finish()


class _Return(torch.autograd.Function):
    """The identity. Its backward enters the stack again, for the recomputations that follow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stack: Stack) -> Tensor:
        ctx.stack = stack
        ctx.parted = x.dim() > 0 and x.shape[0] == stack.size
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.stack.replay()
        return gradients[0], None


def check_parted(logits: Tensor) -> None:
    """Refuse logits of one view that were computed only from tensors that all views share.

    A model may pick rows by the size of its inputs, and so return the rows of the first view only.
    """
    shared = False
    for node in _nodes_before(logits):
        parted: bool | None = getattr(node, "parted", None)
        if parted:
            return
        shared = shared or parted is False
    if shared:
        raise StackError(
            "logits: expected different logits for each view, received the same for all views: the model's output does "
            'not hold all views; use mode="batch", or "sequential"'
        )


def _nodes_before(x: Tensor) -> Iterator[Any]:
    """The autograd nodes by which `x` was computed, back to outputs of a model (the nodes of `watch`) or to leaves."""
    waiting: list[Any] = [x.grad_fn]
    known: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        yield node
        if not hasattr(node, "parted"):
            waiting += [parent for parent, _ in node.next_functions]


def _state(device: torch.device) -> Any:
    """The state of the generator that seeds are drawn from, in a form that is compared without waiting for a GPU."""
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return None
        generator = torch.cuda.default_generators[device.index or 0]
        return generator.initial_seed(), generator.get_offset()
    return hash(torch.get_rng_state().numpy().tobytes())
