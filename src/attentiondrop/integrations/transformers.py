"""transformers: the attention implementation `"attentiondrop"`, and `ConsistencyTrainer`.

`attentiondrop.torch.attach` uses it on its own. Loading a model with `attn_implementation="attentiondrop"` (after
importing this module) runs it everywhere: modules without a site then attend as with "sdpa".

`ScheduleCallback` drives schedules from a `Trainer`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from ..torch.attach.attend import attend
from ..torch.attach.sites import site_of
from ..torch.attach.transformers import implementation_now
from ..torch.functional import Options

#: Without "/" or "flash" in it: transformers would look for a kernel to load.
NAME = "attentiondrop"


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The signature that transformers calls: [B, H, N, D] in, [B, N, H, D] and weights (or None) out."""
    site = site_of(module)
    # Read anew in each call: it may have been set after `attach`, and the mask that arrives is that of the one set now.
    origin = None if site is None else implementation_now(module, site)
    if origin == "eager":
        # Eager attention knows causality from its mask alone.
        causal = False
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = query.shape[2] > 1 and attention_mask is None and causal
    if attention_mask is not None and attention_mask.shape[-1] > key.shape[-2]:
        attention_mask = attention_mask[..., : key.shape[-2]]
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
            # Training must match the model's own evaluation: transformers' sdpa knows neither of these (releases up
            # to 5.17 ignore them there, later ones refuse).
            softcap=None if origin == "sdpa" else softcap,
            sinks=None if origin == "sdpa" else s_aux,
        ),
        # Eager attention hands out its weights, so its stand-in does.
        "auto" if site is None else "eager" if origin == "eager" and site.backend == "auto" else site.backend,
        monitor=site.monitor if site is not None and module.training else None,
    )
    weights = attended.weights if origin == "eager" else None
    return attended.output.transpose(1, 2).contiguous(), None if weights is None else weights.to(query.dtype)


AttentionInterface.register(NAME, attention_forward)
# Without a mask function of the same name transformers passes no mask at all, silently.
AttentionMaskInterface.register(NAME, sdpa_mask)


def __getattr__(name: str) -> Any:
    # `attach` loads this module for every transformers model; the trainer takes seconds to import.
    if name == "ScheduleCallback":
        from .schedule_callback import ScheduleCallback

        return ScheduleCallback
    if name == "ConsistencyTrainer":
        from .consistency_trainer import ConsistencyTrainer

        return ConsistencyTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
