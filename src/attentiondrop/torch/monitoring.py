"""What perturbation does to attention, measured while a model trains: entropies, rates of dropping, sigmas.

Sums stay on the device and nothing synchronises until somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..specs import AttentionDropout, BlurSmoothing, DropHead, DropKey, GaussianNoise, HardMasking
from . import regularisers
from .controller import Controller
from .draws import Active, LogitShape, blur_sigma
from .eager import head_factors, perturb_logits
from .inputs import Inputs
from .sampled_rows import SampledRows, acts_on_weights, needs_all_rows, sample_rows


@dataclass(frozen=True)
class SiteStats:
    """Means over what was measured at one site; lists have an entry for each head.

    Entropies are in nats; `evenness` is the entropy divided by that of the uniform distribution over the visible keys,
    so 1 is flat and 0 a single key. `drop_rates` and `sigmas` are by the name of the regulariser ("hard"; a second one
    is "hard 2").
    """

    calls: int
    entropy_before: list[float]
    entropy_after: list[float]
    evenness_before: list[float]
    evenness_after: list[float]
    drop_rates: dict[str, list[float]] = field(default_factory=dict)
    sigmas: dict[str, list[float]] = field(default_factory=dict)


class Monitor:
    """The running sums of one site, over `rows` queries of `samples` samples in each call."""

    def __init__(self, rows: int = 8, samples: int = 1, controllers: tuple[Controller, ...] = ()) -> None:
        self.rows, self.samples = rows, samples
        #: What is told the evenness of every call.
        self.controllers = controllers
        #: (kind, regulariser) -> [2, H]: sums, and how much was summed. (The calls, too: a number that changes in every
        #: call would be compiled anew in every call.)
        self.sums: dict[tuple[str, str], Tensor] = {}

    @torch.no_grad()
    def measure(self, inputs: Inputs, leaves: list[Active], is_causal: bool, softcap: float | None) -> None:
        """Take one call into account."""
        sample = sample_rows(inputs, is_causal, softcap, self.samples, None if needs_all_rows(leaves) else self.rows)
        self._sum(("calls", ""), *[torch.ones(1, 1, device=inputs.q.device)] * 2)
        self._entropy("before", regularisers.masked_softmax(sample.logits, sample.visible), sample)
        here = [leaf._replace(excerpt=sample.excerpt) for leaf in leaves]
        evenness = self._entropy("after", self._perturbed(sample, here, _labels(leaves)), sample)
        for controller in self.controllers:
            controller.update(evenness)

    def stats(self) -> SiteStats:
        """The means; one synchronisation."""
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

    def _perturbed(self, sample: SampledRows, leaves: list[Active], labels: dict[int, str]) -> Tensor:
        logits, visible = sample.logits, sample.visible
        shape = LogitShape(*logits.shape)
        for leaf in leaves:
            if not acts_on_weights(leaf):
                self._decisions(leaf, labels[leaf.number], logits, visible)
                logits, visible = perturb_logits(leaf, logits, visible)
        weights = regularisers.masked_softmax(logits, visible)
        for leaf in leaves:
            if acts_on_weights(leaf):
                self._decisions(leaf, labels[leaf.number], logits, visible)
            if isinstance(leaf.spec, AttentionDropout):
                weights = regularisers.attention_dropout(weights, leaf.draw(shape), leaf.rate("p"))
        return weights

    def _decisions(self, leaf: Active, label: str, logits: Tensor, visible: Tensor | None) -> None:
        """Count what the regulariser is about to drop, or note its sigma."""
        spec: Any = leaf.spec
        shape = LogitShape(*logits.shape)
        if isinstance(spec, BlurSmoothing):
            self._add("sigma", label, leaf.gate, blur_sigma(leaf, shape, logits.dtype).expand(shape.batch, shape.heads))
        elif isinstance(spec, GaussianNoise):
            sigma = torch.as_tensor(leaf.rate("sigma"), dtype=logits.dtype, device=logits.device)
            self._add("sigma", label, leaf.gate, sigma.reshape(1, -1).expand(1, shape.heads))
        elif isinstance(spec, DropHead):
            self._add(
                "drop",
                label,
                leaf.gate,
                (head_factors(leaf, shape, logits.dtype) == 0).reshape(shape.batch, shape.heads),
            )
        elif isinstance(spec, HardMasking | DropKey | AttentionDropout):
            candidates = visible if visible is not None else torch.ones_like(logits, dtype=torch.bool)
            if isinstance(spec, HardMasking):
                candidates = regularisers.top_k(logits, visible, spec.k)
            uniform, p = leaf.draw(shape), leaf.rate("p")
            by_rank = isinstance(spec, HardMasking) and spec.heads == "stratified"
            below = regularisers.below_by_rank(logits, visible, uniform, p) if by_rank else uniform < p
            candidates = candidates.expand_as(logits)
            self._add("drop", label, leaf.gate, candidates & below, candidates)

    def _add(self, kind: str, label: str, gate: Tensor | None, values: Tensor, counts: Tensor | None = None) -> None:
        # What `OneOf` did not choose was not there.
        weight = 1.0 if gate is None else gate
        self._sum((kind, label), values, torch.ones_like(values) if counts is None else counts, weight)

    def _entropy(self, when: str, weights: Tensor, sample: SampledRows) -> Tensor:
        total = weights.sum(-1, keepdim=True)
        share = weights / total.clamp_min(1e-30)
        entropy = torch.special.entr(share).sum(-1)
        if sample.visible is None:
            seen = torch.full_like(entropy, weights.shape[-1])
        else:
            seen = sample.visible.expand_as(weights).sum(-1).to(entropy.dtype)
        # A row that sees one key, or none, has nothing to spread.
        counted = (seen > 1) & (total.squeeze(-1) > 0)
        self._sum(("entropy", when), torch.where(counted, entropy, 0.0), counted)
        new = self._sum(("evenness", when), torch.where(counted, entropy / seen.clamp_min(2).log(), 0.0), counted)
        return new[0] / new[1]

    def _sum(self, key: tuple[str, str], values: Tensor, counts: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        """Add [b, H, ...] values and counts, by head; returns what was added."""
        dims = [d for d in range(values.ndim) if d != 1]
        new = torch.stack([values.double().sum(dims), counts.double().sum(dims)]) * weight
        if key in self.sums:
            self.sums[key].add_(new)
        else:
            self.sums[key] = new.clone()
        return new


def _labels(leaves: list[Active]) -> dict[int, str]:
    names = [leaf.spec.name for leaf in leaves]
    places = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return {
        leaf.number: name if place == 1 else f"{name} {place}"
        for leaf, name, place in zip(leaves, names, places, strict=True)
    }
