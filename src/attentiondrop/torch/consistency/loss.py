"""`consistency_loss`: a task loss, and a penalty for predictions that change with the draws."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import ArgumentError, bad_argument
from ...parsing import parse
from ...specs import Consistency, Spec
from ...specs.consistency import first_consistency
from ..attach.sites import Site, site_of
from ..rates.scheduled import changing_rates
from .divergence import check_logits, compiled_divergence, divergence
from .stacked_batch import check_parted
from .views import Mode, views


class ConsistencyResult(NamedTuple):
    """`loss == task + weight * divergence`; `outputs` has the model's output for each view."""

    loss: Tensor
    task: Tensor
    divergence: Tensor
    outputs: tuple[Any, ...]


def consistency_loss(
    model: nn.Module,
    inputs: Any,
    task_loss: Callable[[Any], Tensor],
    consistency: Consistency | str | float | None = None,
    mode: Mode = "batch",
    *,
    logits: Callable[[Any], Tensor] | None = None,
    mask: Tensor | None = None,
    items: Tensor | float | None = None,
    compiled: bool = False,
) -> ConsistencyResult:
    """The loss of several random passes over the same input: `task + weight * KL` between their predictions.

    The predictions are the softmax distributions over the last dimension of the logits. For other outputs, call `views`
    and use your own distance. Gradients flow through every view. Call `result.loss.backward()` as usual.

    Args:
        model: in training mode, with attached sites or dropout.
        inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments. Labels do not belong to them,
            but to `task_loss`: with labels, many models compute a loss of their own, over all views at once.
        task_loss: maps the output of one view to its loss, for example
            `lambda logits: F.cross_entropy(logits, labels)`.
        consistency: weight, number of views, direction and task; by default the `Consistency` in the attached specs.
            A number is the weight.
        mode: `"batch"`, `"sequential"` or `"shared"`, as for `views`.
        logits: maps the output of one view to logits [batch, ..., classes]; by default the output itself if it is a
            tensor, or its `logits`.
        mask: [batch, ...], True at the positions whose divergence counts (not padding); all of them by default.
        items: divide the divergence's sum over positions by this number instead of by their count. Where several
            batches are accumulated, give what the task loss is divided by.
        compiled: compute the divergence by code of `torch.compile`. With thousands of classes, such as subwords, this
            takes less time and memory.

    Returns:
        `loss`, `task`, `divergence` and `outputs`.

    Example:
        >>> import attentiondrop as ad
        >>> from attentiondrop.torch.attach import attach
        >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, dropout=0.0, batch_first=True)
        >>> model = nn.Sequential(nn.TransformerEncoder(layer, num_layers=2), nn.Linear(16, 5))
        >>> attachment = attach(model, "dropkey(p=0.3)+consistency(weight=0.5)")
        >>> x, labels = torch.randn(4, 7, 16), torch.randint(5, (4, 7))
        >>> result = consistency_loss(model, x, lambda y: nn.functional.cross_entropy(y.mT, labels))
        >>> bool(result.divergence > 0), torch.equal(result.loss, result.task + 0.5 * result.divergence)
        (True, True)
    """
    if not callable(task_loss):
        raise bad_argument(
            "task_loss",
            "a function of the model's output, such as lambda logits: F.cross_entropy(logits, labels)",
            f"a tensor of shape {list(task_loss.shape)}" if isinstance(task_loss, Tensor) else task_loss,
        )
    settings = settings_for(model, consistency)
    outputs, scores = compared_views(model, inputs, settings, mode, pick_logits if logits is None else logits)
    compare = compiled_divergence() if compiled else divergence
    apart = compare(scores, settings.direction, mask, items)
    chosen = outputs if settings.task == "mean" else outputs[:1]
    task = torch.stack([_scalar(task_loss(output)) for output in chosen]).mean()
    return ConsistencyResult(task + settings.weight * apart, task, apart, outputs)


class ComparedViews(NamedTuple):
    """The outputs of the model for each view, and their logits."""

    outputs: tuple[Any, ...]
    logits: list[Tensor]


def compared_views(
    model: nn.Module, inputs: Any, settings: Consistency, mode: Mode, logits: Callable[[Any], Tensor]
) -> ComparedViews:
    """The views that a consistency loss compares. Refused if they are no logits, or cannot differ."""
    outputs = views(model, inputs, settings.views, mode)
    scores = [check_logits(logits(output)) for output in outputs]
    check_parted(scores[0])
    check_varies(model, scores)
    return ComparedViews(outputs, scores)


def settings_for(model: nn.Module, consistency: Consistency | str | float | None) -> Consistency:
    """The given `Consistency`, or that in the specs attached to `model`, with its schedules evaluated."""
    sites = [site for module in model.modules() if (site := site_of(module)) is not None]
    attached = first_consistency(site.spec for site in sites)
    given: Any = parse(consistency) if isinstance(consistency, str) else consistency
    if given is None:
        given = attached
    elif isinstance(given, int | float) and not isinstance(given, bool):
        given = _of_weight(given, attached)
    if given is None:
        raise ArgumentError(
            "no consistency settings: pass consistency=attentiondrop.Consistency(weight=0.5), or attach a spec that "
            "ends in +consistency(weight=0.5)"
        )
    if not isinstance(given, Consistency):
        raise bad_argument("consistency", "a spec such as attentiondrop.Consistency(weight=0.5)", consistency)
    for site in sites:
        site.done("consistency")  # the loss is computed, so nobody has forgotten it
    if given.scheduled() and not sites:
        raise bad_argument(
            "consistency", "a weight that is a number where nothing is attached: nothing knows the progress", str(given)
        )
    evaluated: Any = given.at(_progress(sites, given)) if given.scheduled() else given
    result: Consistency = evaluated
    return result


def _progress(sites: Sequence[Site], given: Consistency) -> float:
    """The progress at which a scheduled weight is evaluated: that of its attachment (`set_progress`).

    Several attachments may have different ones, since nobody tells it to one whose rates do not depend on it.
    """
    holders = [site for site in sites if site.spec.consistency == given]
    knowing = holders or [site for site in sites if site.told or _depends(site.spec, *site.layer)] or sites
    found = sorted({site.progress for site in knowing})
    if len(found) > 1:
        raise ArgumentError(
            "consistency: expected one progress for its scheduled weight, received "
            f"{' and '.join(map(str, found))}: call set_progress on every attachment"
        )
    return found[0]


@functools.lru_cache
def _depends(spec: Spec, layer: int, layers: int) -> bool:
    """Whether a rate of the spec depends on the progress. (This runs in each step.)"""
    return bool(changing_rates(spec, layer, layers))


def _of_weight(weight: float, attached: Consistency | None) -> Consistency:
    """The settings for a plain number. It must not matter whether it replaces the attached weight, or all of them."""
    given = Consistency(weight=weight)
    if attached is not None and dataclasses.replace(attached, weight=given.weight) != given:
        raise bad_argument("consistency", f"a spec, since one with other settings is attached ({attached})", weight)
    return given


def pick_logits(output: Any) -> Any:
    """The logits in a model output: the output itself if it is a tensor, else its `logits`."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if found is None:
        raise bad_argument(
            "logits",
            "a function that picks the logits from the model's output, which is neither a tensor nor has `logits`",
            type(output).__name__,
        )
    return found


def check_varies(model: nn.Module, scores: Sequence[Tensor]) -> None:
    """Refuse a model whose views are identical because nothing in it is random.

    The logits are compared (which waits for the device) only if no known source of randomness was found. If they
    differ, the model has another one.
    """
    if may_vary(model) or not all(torch.equal(scores[0], other) for other in scores[1:]):
        return
    why = "attach a spec, or give it dropout" if model.training else "it is in evaluation mode, call model.train()"
    raise ArgumentError(
        f"model: expected one whose passes differ, by attached sites or dropout, received {type(model).__name__} whose "
        f"views are identical: {why}"
    )


def may_vary(model: nn.Module) -> bool:
    """Whether the model has a known source of randomness: an attached site, or dropout with a rate above 0."""
    training = [module for module in model.modules() if module.training]
    return any(site_of(module) is not None for module in training) or any(map(_has_dropout, training))


def _has_dropout(module: nn.Module) -> bool:
    dropout = "drop" in type(module).__name__.lower()
    rates = (x for name, x in vars(module).items() if dropout or "drop" in name.lower())
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def _scalar(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        what = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise bad_argument("task_loss", "a function that returns a tensor without dimensions", what)
    return loss
