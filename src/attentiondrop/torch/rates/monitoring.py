"""Measure what perturbation does to attention while a model trains: entropies, rates of dropping, sigmas.

The sums stay on the device. Only `Monitor.stats` waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...specs import Spec
from ..call.leaves import Active, Driven
from ..call.one_call import Call
from ..call.watching import Turn
from ..draws import runs_in_backward
from ..eager import regularisers
from ..eager.table import entry_of
from .entropy_controller import Controller
from .lasting import lasting
from .recent_calls import Recent, warn_of_transform
from .sampled_rows import SampledRows, needs_all_rows, sample_rows


@dataclass(frozen=True)
class SiteStats:
    """Means over the measured rows of one site; lists have an entry for each head.

    Entropies are in nats. `evenness` is the entropy divided by that of the uniform distribution over the visible keys:
    1 means equal weights, 0 a single key. The keys of `drop_rates` and `sigmas` are names of regularisers ("hard"; a
    second one is "hard 2").
    """

    calls: int
    entropy_before: list[float]
    entropy_after: list[float]
    evenness_before: list[float]
    evenness_after: list[float]
    drop_rates: dict[str, list[float]] = field(default_factory=dict)
    sigmas: dict[str, list[float]] = field(default_factory=dict)


class Monitor:
    """The running sums of one site. It measures `rows` queries of `samples` samples in each call."""

    #: Whether somebody asked for the sums; else only the controllers need them. (Older pickles do not say so.)
    watched: bool = False

    def __init__(
        self,
        rows: int = 8,
        samples: int = 1,
        controllers: tuple[Controller, ...] = (),
        recent: Recent | None = None,
        watched: bool = False,
    ) -> None:
        self.rows, self.samples = rows, samples
        self.watched = watched
        #: They get the evenness of every call.
        self.controllers = controllers
        #: The rates of the last calls, which recomputation needs.
        self.recent = Recent() if recent is None else recent
        #: (kind, regulariser) -> [2, H]: sums, and how many values were summed. The number of calls is a tensor here,
        #: too: torch.compile would recompile for a Python number that changes in every call.
        self.sums: dict[tuple[str, str], Tensor] = {}

    @torch.no_grad()
    def turn(self, drop: Spec | Driven | None, seed: Tensor | None, heads: int) -> Turn:
        """What a call with this seed does. Activation checkpointing makes each call twice; only the first one counts.

        A call inside a backward is a recomputation. Compiled code cannot ask whether it runs in a backward: there, a
        seed that was seen before shows a recomputation.
        """
        if seed is None:
            return Turn(drop)
        compiling = torch.compiler.is_compiling()
        if not compiling and runs_in_backward():
            if not self.controllers:
                return Turn(drop, again=True)
            return Turn(self._with(drop, self.recent.surely_rates_of(seed)), again=True)
        rates = [controller.rate(heads) for controller in self.controllers]
        if not compiling:
            if rates:
                self.recent.add(seed, rates)
            return Turn(drop)
        new = ~self.recent.has(seed, rates)
        used = [torch.where(new, now, then) for now, then in zip(rates, self.recent.rates_of(seed), strict=True)]
        self.recent.add(seed, used, new)
        return Turn(self._with(drop, used), new=new)

    def leave_out(self) -> None:
        """A call inside `torch.func` is not measured. Warn if a rate should have moved."""
        if self.controllers:
            warn_of_transform("An adaptive rate (EntropyTarget)")

    def _with(self, drop: Spec | Driven | None, rates: list[Tensor]) -> Spec | Driven | None:
        """`drop` with `rates` as the values of the adaptive rates."""
        if not isinstance(drop, Driven):
            return drop
        values = dict(drop.values)
        for controller, rate in zip(self.controllers, rates, strict=True):
            values[controller.number] = {**values[controller.number], controller.field: rate}
        return drop._replace(values=values)

    @torch.no_grad()
    def measure(self, call: Call, new: Tensor | None = None) -> None:
        """Measure one call and add it to the sums, unless `new` is False."""
        leaves = call.leaves
        sample = sample_rows(call, self.samples, None if needs_all_rows(leaves) else self.rows)
        tally = _Tally()
        tally.sum(("calls", ""), *[torch.ones(1, 1, device=call.inputs.q.device)] * 2)
        tally.entropy("before", regularisers.masked_softmax(sample.logits, sample.visible), sample)
        here = [leaf._replace(excerpt=sample.excerpt) for leaf in leaves]
        evenness = tally.entropy("after", tally.perturbed(sample, here, _labels(leaves)), sample)
        for key, found in tally.sums.items():
            counted = found if new is None else found * new
            if key in self.sums:
                self.sums[key].add_(counted)
            else:
                with lasting():
                    self.sums[key] = counted.clone()
        for controller in self.controllers:
            controller.update(evenness, new)

    def tensors(self) -> list[Tensor]:
        """What a measured call reads and changes."""
        estimates = [controller.estimate for controller in self.controllers if controller.estimate is not None]
        return [*self.sums.values(), *estimates, *self.recent.tensors()]

    def stats(self) -> SiteStats:
        """The means. Waits for the device once."""
        means = {key: (sums[0] / sums[1].clamp_min(1e-30)).tolist() for key, sums in self.sums.items()}
        single = {
            f"{kind}_{when}": means[kind, when] for kind in ("entropy", "evenness") for when in ("before", "after")
        }
        return SiteStats(
            int(self.sums["calls", ""][0]),
            **single,
            drop_rates={name: mean for (kind, name), mean in means.items() if kind == "drop"},
            sigmas={name: mean for (kind, name), mean in means.items() if kind == "sigma"},
        )


class _Tally:
    """The sums of one call."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, str], Tensor] = {}

    def perturbed(self, sample: SampledRows, leaves: list[Active], labels: dict[int, str]) -> Tensor:
        """The weights after every regulariser; also counts the decisions of each."""
        logits, visible = sample.logits, sample.visible
        for leaf in leaves:
            if leaf.spec.level == "logits":
                self._observe(leaf, labels[leaf.number], logits, visible)
                logits, visible = entry_of(leaf.spec).apply(leaf, logits, visible)
        weights = regularisers.masked_softmax(logits, visible)
        for leaf in leaves:
            if leaf.spec.level != "logits":
                self._observe(leaf, labels[leaf.number], logits, visible)
            if leaf.spec.level == "weights":
                weights = entry_of(leaf.spec).apply(leaf, weights)
        return weights

    def _observe(self, leaf: Active, label: str, logits: Tensor, visible: Tensor | None) -> None:
        """Count what the regulariser is about to drop, or note its sigma."""
        found = entry_of(leaf.spec).observe(leaf, logits, visible)
        # A regulariser that `OneOf` did not choose counts with weight 0.
        weight = 1.0 if leaf.gate is None else leaf.gate
        counts = torch.ones_like(found.values) if found.counts is None else found.counts
        self.sum((found.kind, label), found.values, counts, weight)

    def entropy(self, when: str, weights: Tensor, sample: SampledRows) -> Tensor:
        """Sum the entropies of weights; return their mean evenness by head."""
        total = weights.sum(-1, keepdim=True)
        share = weights / total.clamp_min(1e-30)
        entropy = torch.special.entr(share).sum(-1)
        if sample.visible is None:
            seen = torch.full_like(entropy, weights.shape[-1])
        else:
            seen = sample.visible.expand_as(weights).sum(-1).to(entropy.dtype)
        # A row that sees one key or none always has entropy 0, so it is not counted.
        counted = (seen > 1) & (total.squeeze(-1) > 0)
        self.sum(("entropy", when), torch.where(counted, entropy, 0.0), counted)
        new = self.sum(("evenness", when), torch.where(counted, entropy / seen.clamp_min(2).log(), 0.0), counted)
        return new[0] / new[1]

    def sum(self, key: tuple[str, str], values: Tensor, counts: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        """Store the sums of [b, H, ...] values and counts, by head."""
        dims = [d for d in range(values.ndim) if d != 1]
        new = torch.stack([values.double().sum(dims), counts.double().sum(dims)]) * weight
        self.sums[key] = new
        return new


def _labels(leaves: list[Active]) -> dict[int, str]:
    names = [leaf.spec.name for leaf in leaves]
    places = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return {
        leaf.number: name if place == 1 else f"{name} {place}"
        for leaf, name, place in zip(leaves, names, places, strict=True)
    }
