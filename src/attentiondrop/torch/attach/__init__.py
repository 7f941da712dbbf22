"""`attach`: regularise the attention of an existing model, in one line."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from ...attaching import (
    Choice,
    Patterns,
    Unreached,
    check_schedules,
    choose,
    chosen_sites,
    nothing_reached,
    read_patterns,
    warn_of_unreached,
)
from ...errors import bad_argument
from ...specs import Spec
from ...validation import one_of
from ..dispatch import BACKENDS, Backend
from ..nested_values import call_arguments

# Each import registers its way of reaching attention.
from . import multihead as _multihead  # noqa: F401
from . import sdpa as _sdpa  # noqa: F401
from . import transformers as _transformers  # noqa: F401
from .attachment import Attachment
from .attention_kinds import AttentionKind, check_kinds, kinds_of_modules, read_kinds
from .discovery import Found, clean_name, find_attention
from .find_by_running import FindUnperturbed
from .first_step import Report, await_first_step, forget_first_step, is_compiled
from .sites import Site, install, site_of, uninstall
from .training_forward import training_forward


def attach(
    model: nn.Module,
    spec: Choice | Patterns,
    backend: Backend = "auto",
    *,
    kinds: AttentionKind | Sequence[AttentionKind] | None = None,
    example: Any = None,
) -> Attachment:
    """Perturb the attention of `model` in training mode. Nothing else about the model changes.

    Parameters, buffers and `state_dict` keys stay; `model.eval()` is the original model.

    Args:
        model: any module with attention inside: timm, transformers, torchvision, `nn.MultiheadAttention`,
            `nn.Transformer*`, or modules that call `scaled_dot_product_attention`.
        spec: a spec or its text for all sites, or a mapping from patterns of module names (`fnmatch`) to specs. The
            first pattern that matches a name decides. Modules whose pattern says None, or that no pattern matches, stay
            as they are, and are not listed as unreached.
        backend: as for `attention`.
        kinds: attach only to attention of these kinds: "encoder" and "decoder" (their self-attention), "cross". They
            are known for `nn.Transformer*`, for models of transformers, and for modules with an attribute
            `attention_kind`. None: to all attention, whatever its kind.
        example: what the model is called with in training: a tensor, a tuple of positional or a dict of keyword
            arguments. The model runs on it once, without gradients, and attention that runs unperturbed is listed as
            not reached. Buffers, training flags and random numbers stay as they were. Without an example, the first
            training step does this check.

    Returns:
        The attachment. Print it to see which attention was found and which could not be reached.

    Raises:
        AttachError: if no attention could be reached, a pattern or a kind matches none, or `kinds` is given and the
            kind of an attention site is unknown.

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
    patterns, wanted = read_patterns(spec), read_kinds(kinds)
    root = unwrapped(model)
    found, known = find_attention(root), kinds_of_modules(root)
    reachable = [entry for entry in found if entry.way is not None]
    unreached = [_unreached(entry) for entry in found if entry.way is None and entry.certain]
    unsure = [_unreached(entry) for entry in found if not entry.certain]
    arguments = None if example is None else call_arguments("example", example)
    if not reachable:
        unreached += _missed(root, arguments, unreached) if arguments is not None else unsure
        otherwise = "nothing in it calls scaled_dot_product_attention or is nn.MultiheadAttention"
        raise nothing_reached(root, unreached, otherwise)
    attachment = Attachment(root, backend)
    kinds_by_name = {clean_name(name): known.get(module) for name, module in root.named_modules()}
    names = [entry.name for entry in reachable]
    chosen = chosen_sites(names, patterns, kinds_by_name.keys() - _holding(names))
    if wanted is not None:
        entries = [reachable[place] for place, _ in chosen]
        check_kinds([(entry.name, type(entry.module).__name__, known.get(entry.module)) for entry in entries], wanted)
        chosen = [(place, drop) for place, drop in chosen if known[reachable[place].module] in wanted]
        attachment.kinds = wanted
    check_schedules([drop for _, drop in chosen])
    for place, drop in chosen:
        entry = reachable[place]
        install(entry.module, Site(entry.name, drop, backend, str(entry.way), known.get(entry.module)))
        attachment._modules.append(entry.module)
    attachment._evaluate_rates()
    asked = _Asked(patterns, wanted, kinds_by_name)
    attachment.unreached = asked.among(unreached)
    missed: list[Unreached] = []
    if arguments is None:
        attachment._report = _reporter(attachment, asked)
        if (model is not root and is_compiled(model)) or not await_first_step(root, attachment._report):
            missed = unsure  # a compiled model is not checked in its first step
    else:
        try:
            missed = _missed(root, arguments, attachment.unreached)
        except BaseException:
            attachment.remove()
            raise
    attachment.unreached += asked.among(missed)
    warn_of_unreached(root, attachment.unreached)
    return attachment


def _unreached(entry: Found) -> Unreached:
    return Unreached(entry.name, type(entry.module).__name__, str(entry.reason))


def _holding(names: Sequence[str]) -> set[str]:
    """The names of these sites, and of the modules around them."""
    parts = [name.split(".") for name in names]
    return {"", *(".".join(each[:end]) for each in parts for end in range(1, len(each) + 1))}


def _missed(
    root: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], known: Sequence[Unreached]
) -> list[Unreached]:
    """Modules that attend unperturbed in a training forward on the example, without the `known` ones."""
    with FindUnperturbed(root) as finder:
        try:
            training_forward(root, *arguments)
        except Exception as error:
            error.add_note(f"example: expected what {type(root).__name__} is called with in training")
            raise
    return _new(finder.found.values(), known)


class _Asked(NamedTuple):
    """What the user asked for: modules that no pattern or kind asks for are not listed as unreached."""

    patterns: Mapping[str, Spec | None]
    wanted: tuple[str, ...] | None
    #: Name of a module -> its kind, None if unknown.
    kinds: Mapping[str, str | None]

    def among(self, entries: Iterable[Unreached]) -> tuple[Unreached, ...]:
        """The entries that the user asked for."""
        return tuple(entry for entry in entries if choose(entry.name, self.patterns) is not None and self._kind(entry))

    def _kind(self, entry: Unreached) -> bool:
        return self.wanted is None or self.kinds.get(entry.name) in (None, *self.wanted)


def _reporter(attachment: Attachment, asked: _Asked) -> Report:
    """The function that tells the attachment and the user what the first training step found."""
    # A weak reference: the model holds this function, and the attachment holds the model.
    reference, known = weakref.ref(attachment), attachment.unreached

    def report(root: nn.Module, found: Sequence[Unreached]) -> None:
        missed = asked.among(_new(found, known))
        alive = reference()
        if alive is not None:
            alive.unreached += missed
        warn_of_unreached(root, missed)

    return report


def _new(found: Iterable[Unreached], known: Sequence[Unreached]) -> list[Unreached]:
    """The entries of `found` that are neither in `known` nor inside a module of `known`."""
    names = {entry.name for entry in known if entry.name}
    inside = tuple(f"{name}." for name in names)
    listed = {entry.name for entry in known}
    return [entry for entry in found if entry.name not in listed and not entry.name.startswith(inside)]


def detach(model: nn.Module) -> int:
    """Remove every site from `model`, for example from a copy or a loaded pickle; return how many there were."""
    attached = [module for module in model.modules() if site_of(module) is not None]
    for module in attached:
        uninstall(module)
    forget_first_step(unwrapped(model))
    return len(attached)


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's model inside DataParallel, DistributedDataParallel and `torch.compile`."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    inner = model._modules.get("_orig_mod")
    return model if inner is None else unwrapped(inner)
