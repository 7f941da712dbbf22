"""`views`: the outputs of several random passes over the same input."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...errors import AttentionDropError, bad_argument, warn_once
from ...validation import integer, one_of
from ..attach import unwrapped
from ..attach.sites import site_of
from ..nested_values import call_arguments, map_tensors
from .given_labels import labels_among, refuse_labels
from .same_batch import refuse_other_batches
from .shared_prefix import shared_prefix
from .stacked_batch import Stack, StackError

Mode = Literal["batch", "sequential", "shared"]
MODES = ("batch", "sequential", "shared")


def views(model: nn.Module, inputs: Any, count: int = 2, mode: Mode = "batch") -> tuple[Any, ...]:
    """Pass the same input through the model `count` times, each time with different draws.

    Args:
        model: in training mode, with attached sites or dropout, so that passes differ. It may be wrapped in
            DistributedDataParallel or compiled.
        inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments. With `"batch"` and `"shared"`
            the batch comes first in all of them, and labels do not belong to them: the model would compute one loss
            over all views.
        count: how many views.
        mode: `"batch"`: one pass over the repeated batch. `"sequential"`: separate passes, which works for any model.
            `"shared"`: one pass that repeats the batch at the first block with an attached site. The part before it
            runs once, so its dropout is the same for all views.

    Returns:
        The output of each view, in the form in which the model returns it.

    Example:
        >>> import torch, attentiondrop as ad
        >>> from attentiondrop.torch.attach import attach
        >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, dropout=0.0, batch_first=True)
        >>> encoder = nn.TransformerEncoder(layer, num_layers=4)
        >>> attachment = attach(encoder, {"layers.3.*": ad.DropKey(p=0.5)})
        >>> first, second = views(encoder, torch.randn(8, 10, 16), mode="shared")  # layers 0, 1, 2 run once
        >>> first.shape, torch.equal(first, second)
        (torch.Size([8, 10, 16]), False)
    """
    count = integer("count", count, minimum=2)
    one_of("mode", mode, MODES)
    if not isinstance(model, nn.Module):
        raise bad_argument("model", "a torch.nn.Module", type(model).__name__)
    args, kwargs = call_arguments("inputs", inputs)
    if mode == "sequential":
        return tuple(model(*args, **kwargs) for _ in range(count))
    _check_wrapper(model, mode)
    root = unwrapped(model)
    labels = labels_among(root, args, kwargs)
    refuse_labels(root, labels, mode)
    refuse_other_batches(kwargs, mode)
    entry = shared_prefix(root) if mode == "shared" else None
    sites = [site for module in root.modules() if (site := site_of(module)) is not None]
    stack = Stack(count, _batch_size(inputs), sites, entry)
    _warn_of_batch_norm(root, mode)
    if entry is None:
        args = tuple(map_tensors(x, stack.repeat) for x in args)
        kwargs = {name: map_tensors(x, stack.repeat, name) for name, x in kwargs.items()}
    try:
        with stack:
            output = model(*args, **kwargs)
    except (RuntimeError, ValueError, IndexError) as error:  # (torch's losses raise a ValueError)
        if entry is not None and labels is not None:
            error.add_note(
                f'mode="shared": {labels} are repeated for no view where {type(root).__name__} computes a loss from '
                "them: leave them out of inputs and compute the loss in task_loss"
            )
        elif entry is not None and not isinstance(error, AttentionDropError):
            error.add_note(
                f'mode="shared": {type(root).__name__} may use the batch of one view ({stack.batch}) together with '
                f'that of {count} ({stack.size}) outside of its blocks; mode="batch" repeats the inputs themselves'
            )
        raise
    return stack.split(stack.watch(output), labels)


def _batch_size(inputs: Any) -> int:
    """The first dimension of the first tensor."""
    sizes: list[int] = []

    def note(name: str, x: Tensor) -> Tensor:
        if x.dim() > 0:
            sizes.append(x.shape[0])
        return x

    map_tensors(inputs, note)
    if not sizes or sizes[0] == 0:
        raise bad_argument("inputs", "at least one tensor with a batch as its first dimension", inputs)
    return sizes[0]


def _check_wrapper(model: nn.Module, mode: str) -> None:
    if any(isinstance(module, nn.DataParallel) for module in model.modules()):
        raise StackError(
            f'mode: expected "sequential" for a model in nn.DataParallel, which would split the views over its '
            f"devices, received {mode!r} (or use DistributedDataParallel)"
        )


def _warn_of_batch_norm(model: nn.Module, mode: str) -> None:
    seen_site = mode == "batch"
    for name, module in model.named_modules():
        seen_site = seen_site or site_of(module) is not None
        if seen_site and isinstance(module, _BatchNorm) and module.training:
            warn_once(
                "batch norm",
                f'{name} ({type(module).__name__}) takes its statistics over all views together with mode="{mode}"; '
                'mode="sequential" keeps those of each view',
            )
            return
