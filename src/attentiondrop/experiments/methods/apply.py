"""Apply a method to a model, and make the loss to train the model with."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import ArgumentError, AttachError
from ...presets import plain
from ...schedules import Constant
from ...specs import BlurSmoothing, Compose, OneOf, Spec
from ...torch import Attachment, attach, consistency_loss
from ...torch.consistency.loss import compared_views
from ..tasks.interface import Batch, Task, forward
from .comparator import Acting, Pass
from .compiled_losses import compiled_loss, compiled_losses_of_views
from .parse import Method, joined

Mode = Literal["batch", "sequential", "shared"]
#: From the model and a batch to the mean loss of the batch.
Objective = Callable[[nn.Module, Batch], Tensor]


class Applied:
    """What a method did to a model, what it does while the model is trained, and what it makes of the loss.

    With `compiled`, rates are tensors although they do not change: a compiler takes numbers for constants, and would
    compile the model of every setting anew. `compiled_loss` says whether the loss is compiled; None: with the model, if
    the task has many classes. With `kinds`, specs act only on attention of these kinds. With `own_kernels`, plain
    attention runs in the kernels of this library.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        compiled: bool = False,
        compiled_loss: bool | None = None,
        *,
        kinds: Sequence[str] | None = None,
        own_kernels: bool = False,
    ) -> None:
        for part in method.comparators:
            part.change(model)
        self.method, self._compiled, self._compiled_loss = method, compiled, compiled_loss
        spec = method.attached
        self.attachment: Attachment | None = None
        if spec is not None:
            parts = [(_rates_in_tensors(one) if compiled else one, share) for one, share in method.attached_parts]
            self.attachment = _attach_parts(model, parts, kinds)
        elif own_kernels:
            self.attachment = _attach_plain(model, method)
        self.acting = {part.name: acting for part in method.comparators if (acting := part.act(model)) is not None}
        #: Whether rates change during training.
        self.scheduled = spec is not None and any(leaf.scheduled() for leaf in spec.leaves())
        self._consistency = method.consistency
        #: The weight of the consistency loss, if it is scheduled: a tensor, which a captured step reads anew.
        self._weight: Tensor | None = None
        if self._consistency is not None and self._consistency.scheduled():
            self._weight = torch.zeros((), device=next(model.parameters()).device)
        self.set_progress(0.0)

    def set_progress(self, progress: float) -> None:
        """Set the schedules to this share of training. Does nothing without schedules."""
        if self._weight is not None:
            now: Any = self._consistency.at(progress)  # type: ignore[union-attr]
            self._weight.fill_(now.weight)
        if self.scheduled and self.attachment is not None:
            self.attachment.set_progress(progress)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Tell every acting comparator that an epoch begins."""
        for acting in self.acting.values():
            acting.begin_epoch(epoch, epochs)

    def begin_step(self, progress: float) -> None:
        """Set the schedules, and tell every acting comparator that a step begins."""
        self.set_progress(progress)
        for acting in self.acting.values():
            acting.begin_step(progress)

    def end_step(self) -> None:
        """Tell every acting comparator that the weights have changed."""
        for acting in self.acting.values():
            acting.end_step()

    def uncapturable(self) -> str | None:
        """Why a captured step would leave out what a comparator does; None if it would not.

        A replay repeats kernels and calls no Python. The hook for batches is allowed: it runs before the replay. So are
        hooks that only work on tensors.
        """
        for part in self.method.comparators:
            if part.not_captured:
                return f"{part.name} {part.not_captured}"
        for name, acting in self.acting.items():
            others = [hook for hook in _IN_STEP if hook not in acting.on_tensors]
            own = [hook for hook in others if getattr(type(acting), hook) is not getattr(Acting, hook)]
            if own:
                return f"{name} acts on the steps in Python ({', '.join(own)})"
        return None

    def batch(self, batch: Batch) -> Batch:
        """The training batch after the method has changed it."""
        for acting in self.acting.values():
            batch = acting.batch(batch)
        return batch

    def compiles_loss(self, task: Task) -> bool:
        """Whether the loss of this task is compiled."""
        return self._compiled and task.many_classes if self._compiled_loss is None else self._compiled_loss

    def objective(self, task: Task, label_smoothing: float, mode: Mode) -> Objective:
        """The training loss: the mean loss of the task, and what the method adds to it."""
        smoothing = self.method.smoothing(label_smoothing)
        shared = [part.name for part in self.method.comparators if part.draws_per_batch]
        if self._consistency is not None and shared and mode != "sequential":
            raise ArgumentError(
                f"method {self.method.text!r}: {shared[0]} draws once for a batch, so the views of a consistency loss "
                f"need batches of their own: expected training.consistency_mode=sequential, received {mode!r}"
            )

        compiled = self.compiles_loss(task)
        # A comparator that acts on the loss of a view needs it alone.
        joined = compiled and self._consistency is not None and not self.acting
        losses_of_views = compiled_losses_of_views(task) if joined else None
        loss_of = compiled_loss(task) if compiled and not joined else task.loss

        def wide_logits(output: Any) -> Tensor:
            return task.logits(output).float()

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            inputs, targets = batch
            for acting in self.acting.values():
                targets = acting.targets(targets)

            def mean(output: Any) -> Tensor:
                total, count = loss_of(output, targets, smoothing)
                if not self.acting:
                    return total / count
                made = Pass(inputs, targets, wide_logits(output), task.mask(targets), wide_logits)
                return self._task_loss(total / count, made)

            if self._consistency is None:
                found = mean(forward(model, inputs))
            else:
                spec: Any = self._consistency.at(0.0)  # a weight that is scheduled is in `self._weight`
                if losses_of_views is not None:
                    outputs = compared_views(model, inputs, spec, mode, task.logits).outputs
                    counted = len(outputs) if spec.task == "mean" else 1
                    of_task, apart = losses_of_views(outputs, targets, smoothing, counted, spec.direction)
                else:
                    mask = task.mask(targets)
                    _, of_task, apart, _ = consistency_loss(
                        model, inputs, mean, spec, mode, logits=task.logits, mask=mask, compiled=compiled
                    )
                found = of_task + (spec.weight if self._weight is None else self._weight) * apart
            for acting in self.acting.values():
                found = acting.loss(found)
            return found

        return loss

    def _task_loss(self, loss: Tensor, made: Pass) -> Tensor:
        for acting in self.acting.values():
            loss = acting.task_loss(loss, made)
        return loss

    @contextmanager
    def comparators_kept(self) -> Iterator[None]:
        """Restore the state of comparators afterwards."""
        before = {name: acting.state_dict() for name, acting in self.acting.items()}
        try:
            yield
        finally:
            for name, acting in self.acting.items():
                acting.load_state_dict(before[name])

    def has_own_rates(self) -> bool:
        """Whether rates, or the importance of heads, depend on the training: the method alone does not tell them."""
        state = {} if self.attachment is None else self.attachment.state_dict()
        return any(state.get(kind) for kind in ("adaptive", "learned", "importance"))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: learned and adaptive rates, and the state of comparators."""
        rates = {} if self.attachment is None else self.attachment.state_dict()
        acting = {name: acting.state_dict() for name, acting in self.acting.items()}
        return {**rates, **({_ACTING: acting} if acting else {})}

    def own_state(self) -> dict[str, Any]:
        """The part of `state_dict` that may differ between processes, since each of them measures its own data."""
        state, differing = self.state_dict(), {name for name, acting in self.acting.items() if acting.differs}
        acting = {name: one for name, one in state.get(_ACTING, {}).items() if name in differing}
        return {**state, _ACTING: acting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, acting in self.acting.items():
            acting.load_state_dict(state[_ACTING][name])
        if self.attachment is not None:
            self.attachment.load_state_dict({key: value for key, value in state.items() if key != _ACTING})

    def parameters(self) -> list[nn.Parameter]:
        """The learned rates."""
        return [] if self.attachment is None else list(self.attachment.parameters())

    def average_gradients(self) -> None:
        """Give the learned rates the gradients that they have on average in all processes."""
        if self.attachment is not None:
            self.attachment.average_gradients()


def with_own(state: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The state of one process (`Applied.state_dict`), from that of another one and its own part (`own_state`)."""
    return {**state, **own, _ACTING: {**state.get(_ACTING, {}), **own[_ACTING]}}


def _attach_parts(model: nn.Module, parts: Sequence[tuple[Spec, float]], kinds: Any) -> Attachment:
    """Attach each spec to its share of the attention: the last in the order of the model, and at least one."""
    everywhere: Any = joined(spec for spec, _ in parts)
    attachment = attach(model, everywhere, kinds=kinds)
    if all(share == 1.0 for _, share in parts):
        return attachment
    names = [site.name for site, _ in attachment.rows()]
    attachment.remove()
    firsts = [(spec, len(names) - max(1, round(share * len(names)))) for spec, share in parts]
    of_each = {name: joined(spec for spec, first in firsts if place >= first) for place, name in enumerate(names)}
    return attach(model, {glob.escape(name): spec for name, spec in of_each.items() if spec is not None}, kinds=kinds)


def _attach_plain(model: nn.Module, method: Method) -> Attachment:
    """Let the attention of a model run in this library's kernels."""
    try:
        return attach(model, plain())
    except AttachError as error:
        expected = "false for a model, or a method, whose attention this library cannot compute"
        raise ArgumentError(
            f"training.own_kernels: expected {expected}, received true with {method.text}: {error}"
        ) from None


def _rates_in_tensors(spec: Spec) -> Spec:
    """`spec` with schedules that stay where they are for numbers: the rates of schedules are in tensors."""
    if isinstance(spec, Compose):
        return Compose([_rates_in_tensors(part) for part in spec.parts])
    if isinstance(spec, OneOf):
        return OneOf([_rates_in_tensors(part) for part in spec.parts], spec.weights)
    # A sigma for each sample or head has fused code for numbers only.
    if isinstance(spec, BlurSmoothing) and spec.sampling != "batch":
        return spec
    rates = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.type == "Rate"}
    # Sigmas that begin at 0 have fused code for the views of a consistency loss, too, which a tensor would not have.
    if rates.get("sigma_min") == 0.0:
        del rates["sigma_min"]
    return dataclasses.replace(spec, **{name: Constant(x) for name, x in rates.items() if isinstance(x, float)})


#: The hooks of a comparator that change what a step does, or are called within it.
_IN_STEP = ("begin_epoch", "begin_step", "targets", "task_loss", "loss", "end_step")
#: The key for the state of comparators, beside the rates of the attachment.
_ACTING = "comparators"
