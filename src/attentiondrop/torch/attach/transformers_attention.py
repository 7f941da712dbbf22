"""Our attention function in the form that transformers calls, registered there under a name.

Importing this loads transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ...errors import AttachError
from ..call.blocks import Blocks
from ..call.inputs import Options
from .attend import attend
from .multihead import no_weights
from .packed_documents import refuse_unseparated_documents
from .selected_keys import with_selection
from .shared_masks import simple_form
from .sites import Site, site_of
from .transformers_masks import mask_of
from .transformers_names import NAME, REACHABLE, no_mask

try:  # releases before 5 have none
    from transformers.utils.output_capturing import _active_collector as _collector
except ImportError:
    _collector = None


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | Blocks | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it: [B, H, N, D] in, [B, N, H, D] and weights (or None) out."""
    site = site_of(module)
    of_model = attention_mask
    attention_mask = with_selection(module, query, key, attention_mask, kwargs)
    is_selected = attention_mask is not of_model
    is_usual = isinstance(attention_mask, Tensor | None) and all(x is None for x in (softcap, s_aux, position_bias))
    if site is None and is_usual:
        # A model that nothing is attached to is plain, also in its dropout.
        plain: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs
        )
        return plain
    # Read in each call: a user may set it after `attach`, and transformers builds the mask for the present one.
    origin = None if site is None else implementation_now(module, site)
    if site is not None and origin == "eager" and site.backend == "fused" and _asks_for_weights(site, kwargs):
        raise no_weights(site, "output_attentions=False")
    if origin == "eager":
        # Eager attention of transformers ignores is_causal: its mask holds causality.
        causal = False
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = query.shape[2] > 1 and attention_mask is None and causal
    if site is not None and module.training:
        # The mask without the selection: what a row did not select tells nothing about documents.
        refuse_unseparated_documents(module, site, query, key, of_model, kwargs)
    blocks: Blocks | None = None
    window: tuple[int, int] | None = None
    if isinstance(attention_mask, Blocks):
        attention_mask, blocks = None, attention_mask
    if attention_mask is not None and attention_mask.shape[-1] > key.shape[-2]:
        attention_mask = attention_mask[..., : key.shape[-2]]
    # (A selection differs between layers and rows, so it has no simple form.)
    may_read = module.training and not is_selected
    if isinstance(attention_mask, Tensor) and site is not None and may_read and _reads_masks(site, origin):
        attention_mask, window = simple_form(attention_mask, site)
    attended = attend(
        site,
        query,
        key,
        value,
        site.drop if site is not None and module.training else None,
        Options(
            attn_mask=attention_mask,
            dropout_p=dropout,
            is_causal=causal,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
            bias=position_bias,
            # Training must match evaluation: sdpa in transformers does not use these two (up to 5.17 it ignores them,
            # later releases refuse them).
            softcap=None if origin == "sdpa" else softcap,
            sinks=None if origin == "sdpa" else s_aux,
            window=window,
            blocks=blocks,
        ),
        # Eager attention returns its weights, so its replacement must do so, too.
        "auto" if site is None else "eager" if origin == "eager" and site.backend == "auto" else site.backend,
        monitor=site.monitor if site is not None and module.training else None,
    )
    weights = attended.weights if origin == "eager" else None
    return attended.output.transpose(1, 2).contiguous(), None if weights is None else weights.to(query.dtype)


def _asks_for_weights(site: Site, options: dict[str, Any]) -> bool:
    """Whether the user asked for the weights. (Eager attention of transformers returns them in any case.)"""
    asked = options.get("output_attentions")
    if asked or (asked is None and getattr(site.extra["config"], "output_attentions", False)):
        return True
    # Some models, such as GPT-2, do not tell their attention. What collects the weights knows. (It has no public name,
    # and compiled code cannot look at it.)
    if _collector is None or torch.compiler.is_compiling():
        return False
    return any("attentions" in name for name in _collector.get() or ())


def _reads_masks(site: Site, origin: str | None) -> bool:
    """Whether a path may run that depends on the values of a mask, and the values can be read."""
    may_be_fused = origin != "eager" and site.backend != "eager"
    return may_be_fused and not torch.compiler.is_compiling()


def implementation_now(module: nn.Module, site: Site) -> str:
    """The attention implementation that the site replaces in this call.

    Raises:
        AttachError: if it is one that does not get a full mask, or if somebody else has replaced it.
    """
    implementation: str = site.extra["config"]._attn_implementation
    if implementation not in REACHABLE:
        raise AttachError(
            f"{site.name or 'the model'} ({type(module).__name__}): {no_mask(implementation)}, so it cannot be "
            "perturbed: call set_attn_implementation('sdpa') on the model before training, or remove the attachment"
        )
    # Those who shard sequences over processes put a function of theirs there, which gathers them around the call.
    if implementation == "sdpa":
        used = ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", sdpa_attention_forward)
        if used is not sdpa_attention_forward:
            name = f"{getattr(used, '__module__', '')}.{getattr(used, '__qualname__', used)}"
            raise AttachError(
                f"{site.name or 'the model'} ({type(module).__name__}): the attention function 'sdpa' of transformers "
                f"was replaced by {name}, as libraries do that shard sequences over processes. Perturbed attention "
                "needs whole rows: remove the attachment"
            )
    return implementation


AttentionInterface.register(NAME, attention_forward)
# Without a mask function of the same name, transformers silently passes no mask.
AttentionMaskInterface.register(NAME, mask_of)
