"""What people forget in training: a loss, a progress, an optimiser, means over processes. A site warns once about it.

Each of these leaves a spec without its effect, or with another one than was meant, and nothing else would say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from ...adaptive import Learnable
from ...errors import warn_once
from ...specs import Spec
from ..draws import has_processes
from ..rates.learned import LearnedRate
from ..rates.scheduled import changing_rates

if TYPE_CHECKING:
    from .sites import Site

#: How many calls may come without it. A pass or two outside of a loss is no mistake: people look at outputs, and
#: measure. An optimiser may accumulate gradients over many passes.
PATIENCE = {"consistency": 3, "progress": 10, "optimiser": 100, "processes": 100}
#: A warning points at the first line outside of these: at the training loop, or at the model.
_TRAINERS = ("torch", "transformers", "accelerate", "lightning", "pytorch_lightning")


class Reminders:
    """What one site waits for, and how many calls it still waits."""

    def __init__(self, topics: list[str]) -> None:
        #: Topic -> calls that may still come without it. What was done, or warned about, is not in here.
        self.left = {topic: PATIENCE[topic] for topic in topics}

    def done(self, topic: str) -> None:
        """Somebody has done it."""
        self.left.pop(topic, None)

    def count(self, site: Site) -> None:
        """Count one call of the site in training, and warn if there were too many."""
        for topic, left in list(self.left.items()):
            self.left[topic] = left - 1
            if left == 0:
                self.done(topic)
                message = _MESSAGES[topic](site)
                if message is not None:
                    warn_once(f"forgotten {topic}", message, *_TRAINERS)


def reminders_of(spec: Spec) -> Reminders | None:
    """What a site with this spec must wait for; None if nothing."""
    rates = [rate for leaf in spec.leaves() for rate in leaf.scheduled().values()]
    topics = {
        "consistency": spec.consistency is not None,
        "progress": any(not isinstance(rate, Learnable) for rate in rates),
        "optimiser": any(isinstance(rate, Learnable) for rate in rates),
        "processes": any(isinstance(rate, Learnable) for rate in rates),
    }
    wanted = [topic for topic, is_wanted in topics.items() if is_wanted]
    return Reminders(wanted) if wanted else None


def _without_loss(site: Site) -> str:
    return (
        f"the attached spec {site.spec} has a consistency part, which acts only in a loss: compute it with "
        "attentiondrop.torch.consistency_loss (or train with ConsistencyTrainer or ConsistencyMixin). "
        f"There were {PATIENCE['consistency'] + 1} training passes without it"
    )


def _without_progress(site: Site) -> str | None:
    """None if no rate of the site depends on the progress."""
    changing = changing_rates(site.spec, *site.layer)
    if not changing:
        return None
    leaf, field = changing[0]
    now = leaf.scheduled()[field].at(site.progress, *site.layer)
    return (
        f"the rate {field} of {leaf} is a schedule, but nobody sets the progress of the training, so {field} stays at "
        f"{now}. Call attachment.set_progress(step / steps) before every step. ScheduleCallback(attachment) does this "
        "in a Trainer of transformers, and AttentionDropCallback(spec) in Lightning. There were "
        f"{PATIENCE['progress'] + 1} training calls of {site.name or 'the attention'} without it"
    )


def _without_optimiser(site: Site) -> str | None:
    """None unless a learned rate has a gradient and is where it started."""
    for field, rate, is_at_start in _learned(site):
        if is_at_start and rate.raw.grad is not None:
            return (
                f"the rate {field} of {site.name or 'the model'} is to be learned and has a gradient, but it has "
                f"not changed in {PATIENCE['optimiser'] + 1} training calls: give attachment.parameters() to the "
                "optimiser, the parameters of the model do not hold it"
            )
    return None


def _without_means(site: Site) -> str | None:
    """None unless there are several processes, and an optimiser moves a learned rate."""
    processes = torch.distributed.get_world_size() if has_processes() else 1
    for field, rate, is_at_start in _learned(site) if processes > 1 else ():
        if rate.raw.requires_grad and not is_at_start:
            return (
                f"the rate {field} of {site.name or 'the model'} is learned in {processes} processes, but its gradient "
                "is not averaged over them, so that each process learns another rate: call "
                "attachment.average_gradients() after every backward, before the step of the optimiser. (Ignore this "
                f"if you average it yourself.) There were {PATIENCE['processes'] + 1} training calls without it"
            )
    return None


def _learned(site: Site) -> Iterator[tuple[str, LearnedRate, bool]]:
    """The learned rates of the site: field, rate, and whether it is where it started. This waits for a GPU, once."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return  # a capture must not wait
    for fields in ({} if site.driven is None else site.driven.values).values():
        for field, rate in fields.items():
            if isinstance(rate, LearnedRate):
                yield field, rate, rate.is_at_start()


_MESSAGES: dict[str, Callable[[Site], str | None]] = {
    "consistency": _without_loss,
    "progress": _without_progress,
    "optimiser": _without_optimiser,
    "processes": _without_means,
}
