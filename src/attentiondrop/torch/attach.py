"""`attach`: regularise the attention of a model that somebody else wrote, in one line."""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..errors import AttachError, AttentionDropWarning, bad_argument
from ..parsing import parse
from ..schedules import check_progress
from ..specs import Consistency, Spec
from ..validation import integer, one_of
from .draws import numbered
from .functional import BACKENDS, Backend
from .learned import LearnedRate
from .monitoring import SiteStats

# Each import registers its kind of site.
from .sites import multihead as _multihead  # noqa: F401
from .sites import sdpa as _sdpa  # noqa: F401
from .sites import transformers as _transformers  # noqa: F401
from .sites.base import Site, install, site_of, uninstall
from .sites.discovery import Found, find_attention

Choice = Spec | str | None
Patterns = Mapping[str, Choice]


class Unreached(NamedTuple):
    """An attention module that `attach` saw and left alone."""

    name: str
    cls: str
    reason: str


class Attachment:
    """What `attach` did to a model, and the handle to change or undo it. Also a context manager that removes itself."""

    def __init__(self, model: nn.Module, backend: Backend) -> None:
        self.model = model
        self.backend = backend
        self.unreached: tuple[Unreached, ...] = ()
        #: How much of the training is done, in [0, 1]: where schedules stand. See `set_progress`.
        self.progress = 0.0
        self._modules: list[nn.Module] = []

    @property
    def sites(self) -> tuple[Site, ...]:
        """The attached sites: `name`, `spec`, `backend` and `kind` of each."""
        return tuple(site for module in self._modules if (site := site_of(module)) is not None)

    @property
    def consistency(self) -> Consistency | None:
        """The consistency loss that the specs name, for `consistency_loss`."""
        leaves = (leaf for site in self.sites for leaf in site.spec.leaves())
        found = next((leaf for leaf in leaves if isinstance(leaf, Consistency)), None)
        return found and found.at(self.progress)  # type: ignore[return-value]

    def set_progress(self, progress: float) -> None:
        """Say how much of the training is done, from 0 to 1: schedules give their rates for it from now on.

        Nothing is compiled anew. The callbacks in `attentiondrop.integrations` call this for you.

        >>> import attentiondrop as ad
        >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, batch_first=True)
        >>> attachment = attach(layer, ad.HardMasking(p=ad.schedules.Linear(0.0, 0.2)))
        >>> attachment.set_progress(0.5)
        >>> attachment.specs()
        {'self_attn': HardMasking(p=0.1, k=5, fill='zero', heads='independent')}
        """
        self.progress = check_progress(progress)
        sites = self.sites
        modules = [module for module in self._modules if site_of(module) is not None]
        for layer, (site, module) in enumerate(zip(sites, modules, strict=True)):
            site.set_progress(self.progress, layer, len(sites), module)

    def specs(self) -> dict[str, Spec]:
        """What each site does at the present progress, its schedules evaluated."""
        sites = self.sites
        return {site.name: site.spec.at(self.progress, layer, len(sites)) for layer, site in enumerate(sites)}

    def watch(self, rows: int = 8, samples: int = 1) -> None:
        """Measure from now on what happens to the attention, on a few rows of each call; `stats` tells.

        Args:
            rows: how many queries of a sample, spread evenly.
            samples: how many samples of a batch, its first ones.
        """
        rows, samples = integer("rows", rows, minimum=1), integer("samples", samples, minimum=1)
        for site in self.sites:
            site.watch(rows, samples)

    def unwatch(self) -> None:
        """Measure no longer; what was measured is gone."""
        for site in self.sites:
            site.unwatch()

    def stats(self) -> dict[str, SiteStats]:
        """What `watch` has measured at each site in training: entropies, rates of dropping, sigmas, by head.

        >>> import torch, attentiondrop as ad
        >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, batch_first=True)
        >>> attachment = attach(layer, ad.BlurSmoothing(sigma_min=0.5, sigma_max=0.5))
        >>> attachment.watch()
        >>> _ = layer(torch.randn(4, 10, 16))
        >>> attachment.stats()["self_attn"].sigmas
        {'blur': [0.5, 0.5]}
        """
        watched = {site.name: site.monitor for site in self.sites if site.monitor is not None}
        if not watched:
            raise AttachError("stats: nothing is measured; call watch() before the steps to be measured")
        return {name: monitor.stats() for name, monitor in watched.items() if monitor.sums}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint of the training needs in order to go on: never part of the model's own."""
        adaptive = {
            site.name: [controller.state() for controller in site.monitor.controllers]
            for site in self.sites
            if site.monitor is not None and site.monitor.controllers
        }
        learned = {name: rate.raw.detach().clone() for name, rate in self._learned()}
        return {"progress": self.progress, "adaptive": adaptive, "learned": learned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken, with the same specs."""
        self.set_progress(state["progress"])
        known = {site.name: () if site.monitor is None else site.monitor.controllers for site in self.sites}
        for name, states in state["adaptive"].items():
            if len(known.get(name, ())) != len(states):
                raise bad_argument("state", "the state of an attachment with the same specs", name)
            for controller, saved in zip(known[name], states, strict=True):
                controller.load(saved)
        for name, rate in self._learned():
            if name not in state["learned"]:
                raise bad_argument("state", "the state of an attachment with the same specs", name)
            rate.raw.data.copy_(state["learned"][name])

    def parameters(self) -> Iterator[nn.Parameter]:
        """The rates that are learned, for the optimiser; the model's own `parameters()` never has them.

        >>> import torch, attentiondrop as ad
        >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, batch_first=True)
        >>> attachment = attach(layer, ad.BlurSmoothing(sigma_max=ad.Learnable(0.5, high=2.0)))
        >>> optimiser = torch.optim.AdamW([{"params": layer.parameters()}, {"params": attachment.parameters()}])
        """
        return (rate.raw for _, rate in self._learned())

    def _learned(self) -> Iterator[tuple[str, LearnedRate]]:
        for site in self.sites:
            for number, fields in ({} if site.driven is None else site.driven.values).items():
                for field, value in fields.items():
                    if isinstance(value, LearnedRate):
                        yield f"{site.name}.{number}.{field}", value

    def rates(self) -> dict[str, dict[str, Any]]:
        """What the rates of each site that change are now: scheduled, adaptive or learned."""
        return {
            site.name: {
                f"{leaf.name}.{field}": _plain(site.driven.values[number][field])
                for number, leaf in numbered(site.spec)
                for field in leaf.scheduled()
            }
            for site in self.sites
            if site.driven is not None
        }

    def update(self, spec: Choice | Patterns) -> None:
        """Give the sites other specs; every site must still get one. A compiled model notices."""
        chosen = [(site, _choose(site.name, _patterns(spec))) for site in self.sites]
        left = [site.name for site, new in chosen if new is None]
        if left:
            raise AttachError(f"spec: expected one for every attached site, received none for {', '.join(left)}")
        _check_schedules([new for _, new in chosen if new is not None])
        for site, new in chosen:
            site.respec(new)  # type: ignore[arg-type]
        self.set_progress(self.progress)

    def remove(self) -> None:
        """Give every module its own class back. Doing it twice does no harm."""
        for module in self._modules:
            if site_of(module) is not None:
                uninstall(module)
        self._modules.clear()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.remove()

    def __str__(self) -> str:
        sites = self.sites
        lines = [f"AttentionDrop on {type(self.model).__name__}: {len(sites)} attention {_plural('site', len(sites))}"]
        classes = {id(site_of(module)): type(module).__name__ for module in self._modules}
        lines += _grouped([(site.name, classes[id(site)], str(site.spec)) for site in sites])
        if self.unreached:
            lines.append(f"not reached: {len(self.unreached)}")
            lines += _grouped([tuple(entry) for entry in self.unreached])
        return "\n".join(lines)

    __repr__ = __str__


def attach(model: nn.Module, spec: Choice | Patterns, backend: Backend = "auto") -> Attachment:
    """Perturb the attention of `model` in training mode. Nothing else about the model changes.

    Parameters, buffers and `state_dict` keys stay; `model.eval()` is the original model.

    Args:
        model: any module with attention inside: timm, transformers, torchvision, `nn.MultiheadAttention`,
            `nn.Transformer*`, or modules that call `scaled_dot_product_attention`.
        spec: a spec or its text for every site, or a mapping from patterns of module names (`fnmatch`) to specs, of
            which the first that matches wins; a pattern with None, and a name that no pattern matches, is left alone.
        backend: as for `attention`.

    Returns:
        The attachment. Print it to see which attention was found and which could not be reached.

    Raises:
        AttachError: if no attention could be reached, or a pattern matches none.

    Example:
        >>> import torch, attentiondrop as ad
        >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, batch_first=True)
        >>> attachment = attach(layer, ad.HardMasking(p=0.1, k=5))
        >>> print(attachment)
        AttentionDrop on TransformerEncoderLayer: 1 attention site
          self_attn  MultiheadAttention  hard(p=0.1,k=5)
        >>> attachment.remove()
    """
    if not isinstance(model, nn.Module):
        raise bad_argument("model", "a torch.nn.Module", type(model).__name__)
    one_of("backend", backend, BACKENDS)
    patterns = _patterns(spec)
    root = _unwrapped(model)
    found = find_attention(root)
    reachable = [entry for entry in found if entry.kind is not None]
    unreached = [Unreached(e.name, type(e.module).__name__, str(e.reason)) for e in found if e.kind is None]
    if not reachable:
        raise AttachError(_nothing_reached(root, unreached))
    _check_patterns(patterns, reachable)
    chosen = [(entry, drop) for entry in reachable if (drop := _choose(entry.name, patterns)) is not None]
    if not chosen:
        raise AttachError(f"spec: no site is left to attach to; there is {_names(reachable)}")

    _check_schedules([drop for _, drop in chosen])
    attachment = Attachment(root, backend)
    # What no pattern asks for is not missed either.
    attachment.unreached = tuple(entry for entry in unreached if _choose(entry.name, patterns) is not None)
    for entry, drop in chosen:
        install(entry.module, Site(entry.name, drop, backend, str(entry.kind)))
        attachment._modules.append(entry.module)
    attachment.set_progress(0.0)
    if attachment.unreached:
        lines = "\n".join(_grouped([tuple(entry) for entry in attachment.unreached]))
        warnings.warn(
            f"{len(attachment.unreached)} attention {_plural('module', len(attachment.unreached))} of "
            f"{type(root).__name__} could not be reached and will not be regularised:\n{lines}",
            AttentionDropWarning,
            stacklevel=2,
        )
    return attachment


def _plain(rate: Tensor | LearnedRate) -> Any:
    return (rate().detach() if isinstance(rate, LearnedRate) else rate).tolist()


def detach(model: nn.Module) -> int:
    """Remove every site from `model`, for example from a copy or a loaded pickle; returns how many there were."""
    attached = [module for module in model.modules() if site_of(module) is not None]
    for module in attached:
        uninstall(module)
    return len(attached)


def _patterns(spec: Choice | Patterns) -> dict[str, Spec | None]:
    mapping: Mapping[Any, Any] = spec if isinstance(spec, Mapping) else {"*": spec}
    if not isinstance(spec, Mapping) and spec is None:
        raise bad_argument("spec", "a spec, its text, or a mapping from name patterns to them", spec)
    patterns: dict[str, Spec | None] = {}
    for pattern, choice in mapping.items():
        drop = parse(choice) if isinstance(choice, str) else choice
        if not isinstance(pattern, str) or not (drop is None or isinstance(drop, Spec)):
            raise bad_argument("spec", "a spec, its text, or a mapping from name patterns to them", spec)
        if drop is not None and all(isinstance(leaf, Consistency) for leaf in drop.leaves()):
            raise bad_argument("spec", "a perturbation to go with consistency(...)", str(drop))
        patterns[pattern] = drop
    if not patterns:
        raise bad_argument("spec", "at least one pattern", spec)
    return patterns


def _check_schedules(specs: list[Spec]) -> None:
    """Values that do not fit each other, or the number of layers, are an error now and not in the middle of a run."""
    for layer, spec in enumerate(specs):
        for quarter in range(5):
            spec.at(quarter / 4, layer, len(specs))


def _choose(name: str, patterns: Mapping[str, Spec | None]) -> Spec | None:
    return next((drop for pattern, drop in patterns.items() if fnmatch.fnmatchcase(name, pattern)), None)


def _check_patterns(patterns: Mapping[str, Spec | None], reachable: list[Found]) -> None:
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(entry.name, pattern) for entry in reachable):
            raise AttachError(f"spec: pattern {pattern!r} matches no attention site; there is {_names(reachable)}")


def _unwrapped(model: nn.Module) -> nn.Module:
    """The user's model inside DataParallel, DistributedDataParallel and `torch.compile`."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return _unwrapped(model.module)
    inner = model._modules.get("_orig_mod")
    return model if inner is None else _unwrapped(inner)


def _nothing_reached(model: nn.Module, unreached: list[Unreached]) -> str:
    message = f"found no attention in {type(model).__name__} that can be regularised"
    if not unreached:
        return f"{message}: nothing in it calls scaled_dot_product_attention or is nn.MultiheadAttention"
    return "\n".join([f"{message}; seen, but out of reach:", *_grouped([tuple(entry) for entry in unreached])])


def _names(found: list[Found]) -> str:
    shown = [entry.name or "the model itself" for entry in found]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")


def _grouped(rows: list[tuple[str, ...]]) -> list[str]:
    """One line for all rows that differ only in the numbers within their names."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, cls, note in rows:
        groups.setdefault((re.sub(r"\d+", "*", name), cls, note), []).append(name or "(the model itself)")
    cells = [
        (names[0], cls, note) if len(names) == 1 else (pattern, f"{len(names)} x {cls}", note)
        for (pattern, cls, note), names in groups.items()
    ]
    widths = [max(len(cell[column]) for cell in cells) for column in (0, 1)]
    return [f"  {name:<{widths[0]}}  {cls:<{widths[1]}}  {note}" for name, cls, note in cells]


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"
