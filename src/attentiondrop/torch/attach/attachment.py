"""`Attachment`: the handle that `attach` returns, to change, measure, store or undo what it did to a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...attaching import BaseAttachment, Choice, Patterns
from ...errors import AttachError, bad_argument
from ...schedules import check_progress
from ...specs import Spec
from ...validation import integer
from ..call.leaves import places
from ..dispatch import Backend
from ..draws import has_processes
from ..rates.head_importance import HeadImportance
from ..rates.learned import LearnedRate
from ..rates.monitoring import SiteStats
from .first_step import Report, forget_first_step
from .sites import Site, site_of, uninstall


class Attachment(BaseAttachment):
    """What `attach` did to a model, and the handle to change or undo it. As a context manager, it undoes it on exit."""

    def __init__(self, model: nn.Module, backend: Backend) -> None:
        self.model = model
        self.backend = backend
        #: How much of the training is done, in [0, 1]; schedules depend on it. See `set_progress`.
        self.progress = 0.0
        #: The argument `kinds` of `attach`.
        self.kinds: tuple[str, ...] | None = None
        self._modules: list[nn.Module] = []
        #: Whether somebody has set the progress.
        self._is_told = False
        #: Called with the attention that the first training step computes unperturbed.
        self._report: Report | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state for a pickle or a copy, which belong to a model that watches no first step."""
        return {**self.__dict__, "_report": None}

    @property
    def sites(self) -> tuple[Site, ...]:
        """The attached sites: `name`, `spec`, `backend` and `kind` of each.

        `kind` is "encoder", "decoder", "cross", or None if it is unknown.
        """
        return tuple(site for site, _ in self.rows())

    def rows(self) -> list[tuple[Site, str]]:
        """The attached sites, each with the name of its module's class."""
        pairs = ((site_of(module), type(module).__name__) for module in self._modules)
        return [(site, cls) for site, cls in pairs if site is not None]

    def assign(self, site: Site, spec: Spec) -> None:
        """Give one site another spec."""
        site.respec(spec)

    def note(self, site: Site) -> str:
        """The spec, and the kind if sites were chosen by kind."""
        return str(site.spec) if self.kinds is None else f"{site.spec}  {site.kind}"

    def update(self, spec: Choice | Patterns) -> None:
        """Give the sites other specs; every site must still get one. A compiled model uses the new specs, too.

        A pattern that matches none of the sites is an error, as in `attach`, unless it says None. After `watch`, the
        sites stay watched. The measurements start anew, since those so far belong to the old specs.
        """
        super().update(spec)
        self._evaluate_rates()

    def remove(self) -> None:
        """Give every module its own class back. A second call does nothing."""
        for module in self._modules:
            if site_of(module) is not None:
                uninstall(module)
        self._modules.clear()
        if self._report is not None:
            forget_first_step(self.model, self._report)

    def set_progress(self, progress: float) -> None:
        """Say how much of the training is done, from 0 to 1, and set the rates of all schedules for it.

        A compiled model is not compiled again. The callbacks in `attentiondrop.integrations` call this for you.

        >>> import attentiondrop as ad
        >>> from attentiondrop.torch import attach
        >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, batch_first=True)
        >>> attachment = attach(layer, ad.HardMasking(p=ad.schedules.Linear(0.0, 0.2)))
        >>> attachment.set_progress(0.5)
        >>> attachment.specs()
        {'self_attn': HardMasking(p=0.1, k=5, fill='zero', heads='independent')}
        """
        before = self.progress, self._is_told
        self.progress, self._is_told = check_progress(progress), True
        try:
            self._evaluate_rates()
        except BaseException:  # rates that do not fit: nothing changes
            self.progress, self._is_told = before
            self._evaluate_rates()
            raise

    def _evaluate_rates(self) -> None:
        """Set the rates of all schedules for the present progress."""
        sites = self.sites
        modules = [module for module in self._modules if site_of(module) is not None]
        for layer, (site, module) in enumerate(zip(sites, modules, strict=True)):
            site.set_progress(self.progress, layer, len(sites), module)
            site.told = self._is_told
            if self._is_told:
                site.done("progress")

    def set_data_parallel_rank(self, rank: int | None) -> None:
        """For tensor parallelism: processes with the same rank make the same draws.

        By default (None) every process makes its own draws. This is right if each process has other data, or other
        heads of the same data. If several processes compute the same attention on the same data, they must perturb it
        in the same way: give each process its rank in the data-parallel group. Processes of one rank need the same
        seed, as for dropout. A pickle does not store the rank, since another process may load it.

        Example::

            attachment.set_data_parallel_rank(mesh.get_local_rank("dp"))  # of a DeviceMesh with "dp" and "tp"
        """
        number = None if rank is None else integer("rank", rank, minimum=0)
        for site in self.sites:
            site.rank = number

    def specs(self) -> dict[str, Spec]:
        """The spec of each site, with its schedules evaluated at the present progress."""
        sites = self.sites
        return {site.name: site.spec.at(self.progress, layer, len(sites)) for layer, site in enumerate(sites)}

    def watch(self, rows: int = 8, samples: int = 1) -> None:
        """Measure from now on what happens to the attention, on a few rows of each call; `stats` returns the result.

        Args:
            rows: how many queries of a sample, spread evenly.
            samples: how many samples of a batch; the first ones are taken.
        """
        rows, samples = integer("rows", rows, minimum=1), integer("samples", samples, minimum=1)
        for site in self.sites:
            site.watch(rows, samples)

    def unwatch(self) -> None:
        """Stop measuring and discard what was measured."""
        for site in self.sites:
            site.unwatch()

    def stats(self) -> dict[str, SiteStats]:
        """What `watch` has measured at each site in training: entropies, rates of dropping, sigmas, by head.

        >>> import torch, attentiondrop as ad
        >>> from attentiondrop.torch import attach
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
        """What a checkpoint needs beside the `state_dict` of the model, which does not hold it.

        That is the progress, adaptive and learned rates, and the importance of heads.
        """
        adaptive = {
            site.name: [controller.state() for controller in site.monitor.controllers]
            for site in self.sites
            if site.monitor is not None and site.monitor.controllers
        }
        learned = {name: rate.raw.detach().clone() for name, rate in self._learned()}
        importance = {name: kept.means.clone() for name, kept in self._importances() if kept.means is not None}
        return {"progress": self.progress, "adaptive": adaptive, "learned": learned, "importance": importance}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, with the same specs attached. If it does not fit, nothing changes."""
        if not isinstance(state, Mapping) or not {"progress", "adaptive", "learned"} <= state.keys():
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise bad_argument("state", "what attachment.state_dict() returned", found)
        known = {site.name: () if site.monitor is None else site.monitor.controllers for site in self.sites}
        learned, importances = dict(self._learned()), dict(self._importances())
        stored = state.get("importance", {})  # older states have none
        wanted = {(name, len(controllers)) for name, controllers in known.items() if controllers}
        given = {(name, len(states)) for name, states in state["adaptive"].items()}
        others = {name for name, _ in wanted ^ given}
        others |= (learned.keys() ^ state["learned"].keys()) | (stored.keys() - importances.keys())
        # One number goes to all heads.
        shapes = {name: (x.shape, learned[name].raw.shape) for name, x in state["learned"].items() if name in learned}
        others |= {name for name, (new, old) in shapes.items() if new not in ((), old)}
        if others:
            raise bad_argument("state", "the state of an attachment with the same specs", min(others))
        self.set_progress(state["progress"])
        for name, states in state["adaptive"].items():
            for controller, saved in zip(known[name], states, strict=True):
                controller.load(saved)
        for name, rate in learned.items():
            rate.raw.data.copy_(state["learned"][name])
        for name, kept in importances.items():
            kept.load(stored.get(name))

    def _importances(self) -> Iterator[tuple[str, HeadImportance]]:
        for site in self.sites:
            for number, kept in ({} if site.driven is None else site.driven.states).items():
                yield f"{site.name}.{number}", kept

    def parameters(self) -> Iterator[nn.Parameter]:
        """The learned rates, for the optimiser. The `parameters()` of the model do not include them.

        >>> import torch, attentiondrop as ad
        >>> from attentiondrop.torch import attach
        >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, batch_first=True)
        >>> attachment = attach(layer, ad.BlurSmoothing(sigma_max=ad.Learnable(0.5, high=2.0)))
        >>> optimiser = torch.optim.AdamW([{"params": layer.parameters()}, {"params": attachment.parameters()}])
        """
        return (rate.raw for _, rate in self._learned())

    def average_gradients(self, group: Any = None) -> None:
        """Replace the gradients of the learned rates by their means over all processes (of the group, if one is given).

        Call it in every process, after the backward and before the step of the optimiser. The wrappers of torch for
        several processes (DistributedDataParallel, `fully_shard`) do not know these parameters. Without the means, each
        process would learn rates of its own. A process without a gradient counts with 0. In a single process this does
        nothing.

        Example::

            loss.backward()
            attachment.average_gradients()
            optimiser.step()
        """
        for site in self.sites:
            site.done("processes")
        processes = torch.distributed.get_world_size(group) if has_processes() else 1
        if processes == 1:
            return
        for rate in self.parameters():
            mean = torch.zeros_like(rate) if rate.grad is None else rate.grad / processes
            torch.distributed.all_reduce(mean, group=group)
            rate.grad = mean

    def _learned(self) -> Iterator[tuple[str, LearnedRate]]:
        for site in self.sites:
            for number, fields in ({} if site.driven is None else site.driven.values).items():
                for field, value in fields.items():
                    if isinstance(value, LearnedRate):
                        yield f"{site.name}.{number}.{field}", value

    def tensors(self) -> list[Tensor]:
        """The tensors that calls of the sites read or change, beside the weights: rates, and what measures them.

        A captured graph is of use as long as these stay the same tensors.
        """
        found: list[Tensor] = []
        for site in self.sites:
            for fields in ({} if site.driven is None else site.driven.values).values():
                found += [value.raw if isinstance(value, LearnedRate) else value for value in fields.values()]
            found += [] if site.monitor is None else site.monitor.tensors()
        return found + [tensor for _, kept in self._importances() for tensor in kept.tensors()]

    def rates(self) -> dict[str, dict[str, Any]]:
        """The present values of all rates that change (scheduled, adaptive or learned), for each site."""
        return {
            site.name: {
                f"{leaf.name}.{field}": _plain(site.driven.values[number][field])
                for number, leaf, _ in places(site.spec)
                for field in leaf.scheduled()
            }
            for site in self.sites
            if site.driven is not None and any(leaf.scheduled() for leaf in site.spec.leaves())
        }


def _plain(rate: Tensor | LearnedRate) -> Any:
    return (rate().detach() if isinstance(rate, LearnedRate) else rate).tolist()
