"""The kind of an attention module: self-attention of an encoder or of a decoder, or cross-attention.

Known are the layers of `nn.Transformer*`, models of transformers, and every module that says its kind itself, by an
attribute `attention_kind`. The kind of any other module is unknown, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from torch import nn

from ...errors import AttachError, bad_argument
from .discovery import clean_name

AttentionKind = Literal["encoder", "decoder", "cross"]
KINDS_OF_ATTENTION: tuple[str, ...] = get_args(AttentionKind)
#: The attribute with which a module says its kind.
OWN_WORD = "attention_kind"
#: Names that transformers gives to cross-attention, in lower case and without "_".
_CROSS_NAMES = {"crossattention", "crossattn", "encoderattn", "encdecattention", "encoderdecoderattention"}

#: The attention of torch's own layers: attribute -> kind.
_LAYERS: dict[type[nn.Module], dict[str, str]] = {
    nn.TransformerEncoderLayer: {"self_attn": "encoder"},
    nn.TransformerDecoderLayer: {"self_attn": "decoder", "multihead_attn": "cross"},
}


def read_kinds(kinds: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The argument `kinds` of `attach`, checked. One kind may be a plain text."""
    if kinds is None:
        return None
    chosen = (kinds,) if isinstance(kinds, str) else tuple(kinds) if isinstance(kinds, Iterable) else ()
    if not chosen or any(kind not in KINDS_OF_ATTENTION for kind in chosen):
        raise bad_argument("kinds", f"one or more of {', '.join(map(repr, KINDS_OF_ATTENTION))}", kinds)
    return chosen


def kinds_of_modules(model: nn.Module) -> dict[nn.Module, str]:
    """Each module of `model` whose kind of attention is known, with its kind."""
    found: dict[nn.Module, str] = {}
    for name, module in model.named_modules():
        layer = next((kinds for cls, kinds in _LAYERS.items() if isinstance(module, cls)), None)
        if layer is not None:
            found |= {child: layer[name] for name, child in module.named_children() if name in layer}
        elif _is_of_transformers(module) and (kind := _in_transformers(clean_name(name), module)):
            found[module] = kind
    # What a module says itself counts most.
    for name, module in model.named_modules():
        own = getattr(module, OWN_WORD, None)
        if own is not None:
            if own not in KINDS_OF_ATTENTION:
                expected = f"one of {', '.join(map(repr, KINDS_OF_ATTENTION))}"
                raise bad_argument(f"{OWN_WORD} of {clean_name(name) or 'the model'}", expected, own)
            found[module] = own
    return found


def _is_of_transformers(module: nn.Module) -> bool:
    """Whether the module looks up its attention function in a configuration, as attention in transformers does."""
    config = module.__dict__.get("config")
    says = hasattr(module, "is_causal") or hasattr(module, "is_decoder")
    return config is not None and hasattr(config, "_attn_implementation_internal") and says


def _in_transformers(name: str, module: nn.Module) -> str | None:
    parts = [part.lower().replace("_", "") for part in name.split(".")]
    config = module.__dict__["config"]
    both = bool(getattr(config, "is_encoder_decoder", False))
    decodes = bool(getattr(module, "is_decoder", False))
    # Some modules say only whether they belong to a decoder.
    causal = getattr(module, "is_causal", decodes)
    if (
        getattr(module, "is_cross_attention", False)
        or "CrossAttention" in type(module).__name__
        or _CROSS_NAMES.intersection(parts)
        # The attention of a decoder that may look ahead looks at an encoder.
        or (both and decodes and causal is False)
    ):
        return "cross"
    if causal or decodes or (both and "decoder" in parts):
        return "decoder"
    return "encoder" if causal is False else None


def check_kinds(sites: Sequence[tuple[str, str, str | None]], kinds: Sequence[str]) -> None:
    """Check sites (name, class, kind): the kind of each must be known, and each of `kinds` must be there."""
    unknown = [f"{name or 'the model itself'} ({cls})" for name, cls, kind in sites if kind is None]
    if unknown:
        listed = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
        raise AttachError(
            f"kinds: the kind of {listed} is unknown; set {OWN_WORD} = 'encoder', 'decoder' or 'cross' on the module "
            "or its class, or leave it out by a pattern that says None"
        )
    for kind in kinds:
        if not any(found == kind for _, _, found in sites):
            there = ", ".join(dict.fromkeys(repr(found) for _, _, found in sites))
            raise AttachError(f"kinds: no attention site is of kind {kind!r}; there is {there or 'none'}")
