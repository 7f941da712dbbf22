"""A step of training as one CUDA graph: captured once for each shape of a batch, then replayed.

A replay repeats the kernels of the step with the tensors it was captured with. So inputs are copied into the same
buffers in every step, and the learning rate and the rates of a method are tensors that change in place. Random numbers
come from the device's generator, which a replay moves on as the step itself would: captured and uncaptured runs make
the same draws.

Before it is captured, a step is taken a few times to warm up. Then weights, the state of the optimiser, rates and
generators get their old values again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...errors import ArgumentError, AttentionDropError
from ..failures import in_words
from ..tasks.interface import Batch
from .changed_tensors import ChangedTensors
from .seeding import derived_seed, own_generators
from .step import Step, Weight

Say = Callable[[str], None]
Work = Callable[[], None]

#: Passes before a capture. The first compiles; adaptive rates compile once more when they have their first estimate.
WARM_UP = 3

CAPTURED = "captured"
#: How many shapes of a batch get a graph, unless the task says otherwise. A last batch of another size is one more.
MOST_GRAPHS = 4


class Recorder(Protocol):
    """Turns work into something that can be repeated."""

    def warm_up(self, work: Work, passes: int) -> None:
        """Do the work `passes` times; an error says what could not be captured."""

    def record(self, work: Work) -> Work:
        """Record the work, and return a function that repeats it."""


class CannotCaptureError(AttentionDropError):
    """Why a step cannot be captured."""


@dataclass(frozen=True)
class _Graph:
    """One captured step, with everything that it reads and writes."""

    replay: Work
    #: Its inputs: the leaves of parts and weights that are tensors.
    buffers: list[Tensor]
    #: What it changes: these tensors must live as long as the graph.
    tensors: list[Tensor]


class CapturedStep:
    """Takes steps by replaying graphs. What cannot be captured is taken as it is, after one line that says why."""

    def __init__(
        self, step: Step, recorder: Recorder, say: Say, required: bool = False, most_graphs: int = MOST_GRAPHS
    ) -> None:
        self.step, self._recorder, self._say, self._required = step, recorder, say, required
        self._most_graphs = most_graphs
        self._changed = ChangedTensors(step)
        self._graphs: dict[Any, _Graph] = {}
        #: The learning rate of each group of the optimiser.
        self._learning_rates = [torch.zeros_like(step.total) for _ in step.optimizer.param_groups]
        #: Why nothing is captured any more.
        self.given_up: str | None = None
        self._said_shapes = False

    def __call__(self, parts: Sequence[Batch], weights: Sequence[Weight]) -> None:
        """Take a step."""
        average = self.step.average
        # The first update of an average is another operation than all that follow.
        if self.given_up or (average is not None and average.begins):
            self.step(parts, weights)
            return
        leaves, form = tree_flatten([list(parts), list(weights)])
        graph = self._graph_for((form, *map(_kind, leaves)), parts, weights)
        if graph is None:
            self.step(parts, weights)
            return
        self._fill(graph.buffers, leaves)
        graph.replay()
        self.step.count()

    def begin_epoch(self) -> None:
        """Drop graphs whose tensors were replaced since they were captured; they are captured again."""
        now = [tensor.data_ptr() for tensor in self._changed.all()] if self._graphs else []
        stale = [key for key, graph in self._graphs.items() if [t.data_ptr() for t in graph.tensors] != now]
        for key in stale:
            del self._graphs[key]

    def release(self) -> None:
        """Give the memory of all graphs back."""
        self._graphs.clear()

    def _graph_for(self, key: Any, parts: Sequence[Batch], weights: Sequence[Weight]) -> _Graph | None:
        """The graph for batches that have `key` in common; None if there is none and none can be made."""
        if key not in self._graphs:
            if len(self._graphs) >= self._most_graphs:
                if not self._said_shapes:
                    most = self._most_graphs
                    self._say(f"training.capture: batches have more than {most} shapes, the others run uncaptured")
                self._said_shapes = True
                return None
            try:
                self._graphs[key] = self._capture(parts, weights)
            except Exception as error:  # whatever it is: the step itself runs next and shows whether it is at fault
                self._graphs.clear()
                self.given_up = in_words(error) + _where(error)
                if self._required:
                    raise ArgumentError(
                        f"training.capture: expected a step that can be captured: {self.given_up}"
                    ) from error
                self._say(f"training.capture: off, since {self.given_up}")
                return None
        return self._graphs[key]

    def _capture(self, parts: Sequence[Batch], weights: Sequence[Weight]) -> _Graph:
        leaves, form = tree_flatten([list(parts), list(weights)])
        leaves = [_buffer(leaf, self.step.total) for leaf in leaves]
        static_parts, static_weights = tree_unflatten(leaves, form)
        before = self._changed.copy()

        def work() -> None:
            self.step.compute(static_parts, static_weights)

        try:
            # Not the numbers of the run: adaptive rates tell calls apart by their seeds.
            with own_generators(), self._tensor_rates():
                torch.manual_seed(derived_seed(torch.initial_seed(), "warm-up"))
                self._recorder.warm_up(work, WARM_UP)
            with own_generators(), self._tensor_rates(capturable=True), _no_draws_of_the_host(self.step.total.device):
                replay = self._recorder.record(work)
        finally:
            self._changed.put_back(before)
        return _Graph(replay, [leaf for leaf in leaves if isinstance(leaf, Tensor)], self._changed.all())

    @torch.no_grad()
    def _fill(self, buffers: list[Tensor], leaves: list[Any]) -> None:
        """Copy what this step is about into what the graph reads."""
        for buffer, leaf in zip(buffers, filter(_is_input, leaves), strict=True):
            if isinstance(leaf, Tensor):
                buffer.copy_(leaf, non_blocking=True)
            else:
                buffer.fill_(leaf)
        for rate, group in zip(self._learning_rates, self.step.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])

    @contextmanager
    def _tensor_rates(self, capturable: bool = False) -> Iterator[None]:
        """Within, the optimiser reads its learning rates from our tensors; it has plain numbers at all other times."""
        groups = self.step.optimizer.param_groups
        before = [(group["lr"], group["capturable"]) for group in groups]
        for group, rate in zip(groups, self._learning_rates, strict=True):
            rate.fill_(group["lr"])
            group["lr"], group["capturable"] = rate, capturable
        try:
            yield
        finally:
            for group, (rate, was) in zip(groups, before, strict=True):
                group["lr"], group["capturable"] = rate, was


def _where(error: Exception) -> str:
    """The last line outside of torch that led to an error that is not ours: torch's own names no place."""
    if isinstance(error, AttentionDropError):
        return ""
    library = Path(torch.__file__).parent
    frames = [
        frame
        for frame in extract_tb(error.__traceback__)
        # Modes, such as that of `attach`, hand everything on.
        if not Path(frame.filename).is_relative_to(library) and not frame.name.startswith("__torch_")
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _is_input(leaf: Any) -> bool:
    return isinstance(leaf, (Tensor, float))


def _buffer(leaf: Any, like: Tensor) -> Any:
    """A tensor of our own for an input: tensors, and numbers that may differ from step to step."""
    if isinstance(leaf, Tensor):
        return leaf.detach().clone()
    return torch.full_like(like, leaf) if isinstance(leaf, float) else leaf


def _kind(leaf: Any) -> Any:
    """What two inputs must have in common to share a graph."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.device
    return float if _is_input(leaf) else leaf


@contextmanager
def _no_draws_of_the_host(device: torch.device) -> Iterator[None]:
    """Refuse a step that draws from a generator of the host: every replay would repeat the number."""
    before = _host_generators(device)
    yield
    if _host_generators(device) != before:
        raise CannotCaptureError("the step draws random numbers on the CPU, which a replay would repeat")


def _host_generators(device: torch.device) -> list[Any]:
    numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - others may use it
    found = [random.getstate(), numpy["state"]["pos"], numpy["state"]["key"].tobytes()]
    return found if device.type == "cpu" else [*found, torch.get_rng_state().numpy().tobytes()]
