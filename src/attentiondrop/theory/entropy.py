"""`attention_entropy`: how spread out attention is, before and after a perturbation, by head and layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ArgumentError
from ..specs import Spec
from ..torch import attach, detach
from ..torch.attach.sites import Site, site_of
from ..torch.rates.monitoring import SiteStats
from ..validation import integer
from .stochastic import device_of, seeded, sites_of, vectorisable

#: More rows than any attention has, so that all rows are measured.
_ALL = 2**30


@dataclass(frozen=True)
class AttentionEntropy:
    """Mean entropies of attention rows in nats, of the same rows before and after the perturbation."""

    spec: str
    #: Means over all layers and heads.
    before: float
    after: float
    #: The standard error of `change`, over groups of examples.
    standard_error: float
    #: Site name -> measurements, with an entry for each head.
    sites: dict[str, SiteStats]

    @property
    def change(self) -> float:
        """How much the perturbation adds."""
        return self.after - self.before

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self) | {"change": self.change}


def attention_entropy(
    model: nn.Module,
    inputs: Tensor,
    spec: Spec | str | None = None,
    *,
    draws: int = 4,
    groups: int = 8,
    seed: int = 0,
) -> AttentionEntropy:
    """Measure the entropy of every attention row before and after a perturbation.

    Each layer gets the output of the perturbed layers before it. Dropout is off, also that of attention weights: all
    modules are in evaluation mode, but those whose attention is perturbed. The model does not change.

    Args:
        model: any model that `attach` reaches.
        inputs: a batch.
        spec: what to attach; by default what is attached already, with its present rates.
        draws: how many calls, each with new draws.
        groups: into how many groups the examples are split, for the standard error.
        seed: of the draws.

    Example:
        >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, dropout=0.0, batch_first=True)
        >>> found = attention_entropy(layer, torch.randn(16, 10, 16), "noise(sigma=5.0)")
        >>> found.after < found.before  # noise concentrates attention that is nearly uniform
        True
    """
    draws, groups = integer("draws", draws, minimum=1), integer("groups", groups, minimum=2)
    if len(inputs) < groups:
        raise ArgumentError(f"inputs: expected at least {groups} examples, one for each group, received {len(inputs)}")
    watched = _watched(model, spec)
    named = _named_sites(watched)
    device = device_of(model)
    parts = inputs.to(device).tensor_split(groups)
    found: list[dict[str, SiteStats]] = []
    with seeded(seed, device), _only_attention(named.values(), watched), torch.no_grad():
        for group in parts:
            for site in named.values():
                site.watch(rows=_ALL, samples=len(group))
            for _ in range(draws):
                watched(group)
            found.append(_measured(named))
    changes = [_mean(stats, "entropy_after") - _mean(stats, "entropy_before") for stats in found]
    sizes = [len(group) for group in parts]
    sites = {name: _average([stats[name] for stats in found], sizes) for name in found[0]}
    return AttentionEntropy(
        _text({name: site.spec for name, site in named.items()}),
        _mean(sites, "entropy_before"),
        _mean(sites, "entropy_after"),
        stdev(changes) / math.sqrt(groups),
        sites,
    )


def entropy_sweep(
    model: nn.Module,
    inputs: Tensor,
    specs: Iterable[Spec | str],
    *,
    draws: int = 4,
    groups: int = 8,
    seed: int = 0,
    on_spec: Callable[[int], None] = lambda done: None,
) -> list[AttentionEntropy]:
    """`attention_entropy` for several specs, such as one over a range of `p`, `k` or `sigma`."""
    found: list[AttentionEntropy] = []
    for spec in specs:
        found.append(attention_entropy(model, inputs, spec, draws=draws, groups=groups, seed=seed))
        on_spec(len(found))
    return found


def _watched(model: nn.Module, spec: Spec | str | None) -> nn.Module:
    """A copy of the model with the spec, or with what is attached already: with its present rates, which stay."""
    if spec is None:
        if not sites_of(model):
            raise ArgumentError("spec: expected one, since nothing is attached to the model, received None")
        return vectorisable(model)
    watched = copy.deepcopy(model)
    detach(watched)
    attach(watched, spec, backend="eager")
    for site in sites_of(watched):
        site.freeze()
    return watched


def _named_sites(model: nn.Module) -> dict[str, Site]:
    """The sites by their names; by their paths in the model if several attachments gave the same name twice."""
    paths = {path: site for path, module in model.named_modules() if (site := site_of(module)) is not None}
    names = {site.name: site for site in paths.values()}
    return names if len(names) == len(paths) else paths


def _measured(sites: dict[str, Site]) -> dict[str, SiteStats]:
    """What the sites that were called have measured."""
    watched = {name: site.monitor for name, site in sites.items() if site.monitor is not None}
    return {name: monitor.stats() for name, monitor in watched.items() if monitor.sums}


def _text(specs: dict[str, Spec]) -> str:
    texts = list(dict.fromkeys(map(str, specs.values())))
    return texts[0] if len(texts) == 1 else "; ".join(f"{name}: {spec}" for name, spec in specs.items())


@contextmanager
def _only_attention(sites: Iterable[Site], model: nn.Module) -> Iterator[None]:
    """Only the attention that is perturbed is in training mode, and without the model's own dropout of its weights.

    In evaluation mode, torch's Transformer layers would compute their attention themselves, without asking the site.
    """
    for site in sites:
        site.keeps_dropout = False
    for module in model.modules():
        module.training = site_of(module) is not None
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _mean(sites: dict[str, SiteStats], name: str) -> float:
    return fmean(value for stats in sites.values() for value in getattr(stats, name))


def _average(stats: list[SiteStats], sizes: list[int]) -> SiteStats:
    """The mean over groups of these sizes, which differ by at most one example."""

    def mean(rows: list[list[float]]) -> list[float]:
        return [fmean(column, weights=sizes) for column in zip(*rows, strict=True)]

    def named(field: str) -> dict[str, list[float]]:
        return {key: mean([getattr(entry, field)[key] for entry in stats]) for key in getattr(stats[0], field)}

    return SiteStats(
        sum(entry.calls for entry in stats),
        entropy_before=mean([entry.entropy_before for entry in stats]),
        entropy_after=mean([entry.entropy_after for entry in stats]),
        evenness_before=mean([entry.evenness_before for entry in stats]),
        evenness_after=mean([entry.evenness_after for entry in stats]),
        drop_rates=named("drop_rates"),
        sigmas=named("sigmas"),
    )
