"""`attach`: regularise the attention of a model that somebody else wrote, in one line."""

from __future__ import annotations

from torch import nn

from ..attaching import (
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
from ..errors import bad_argument
from ..validation import one_of
from .attachment import Attachment
from .functional import BACKENDS, Backend

# Each import registers its kind of site.
from .sites import multihead as _multihead  # noqa: F401
from .sites import sdpa as _sdpa  # noqa: F401
from .sites import transformers as _transformers  # noqa: F401
from .sites.base import Site, install, site_of, uninstall
from .sites.discovery import find_attention


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
    patterns = read_patterns(spec)
    root = unwrapped(model)
    found = find_attention(root)
    reachable = [entry for entry in found if entry.kind is not None]
    unreached = [Unreached(e.name, type(e.module).__name__, str(e.reason)) for e in found if e.kind is None]
    if not reachable:
        otherwise = "nothing in it calls scaled_dot_product_attention or is nn.MultiheadAttention"
        raise nothing_reached(root, unreached, otherwise)
    attachment = Attachment(root, backend)
    chosen = chosen_sites([entry.name for entry in reachable], patterns)
    check_schedules([drop for _, drop in chosen])
    for place, drop in chosen:
        entry = reachable[place]
        install(entry.module, Site(entry.name, drop, backend, str(entry.kind)))
        attachment._modules.append(entry.module)
    attachment.set_progress(0.0)
    # What no pattern asks for is not missed either.
    attachment.unreached = tuple(entry for entry in unreached if choose(entry.name, patterns) is not None)
    warn_of_unreached(root, attachment.unreached)
    return attachment


def detach(model: nn.Module) -> int:
    """Remove every site from `model`, for example from a copy or a loaded pickle; returns how many there were."""
    attached = [module for module in model.modules() if site_of(module) is not None]
    for module in attached:
        uninstall(module)
    return len(attached)


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's model inside DataParallel, DistributedDataParallel and `torch.compile`."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    inner = model._modules.get("_orig_mod")
    return model if inner is None else unwrapped(inner)
