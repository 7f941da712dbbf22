"""Find the attention in a model by what its classes do, not by a list of their names."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn
from torch.nn import functional as F

from . import transformers
from .classes import own_class
from .reading import Read, read
from .sdpa import SWITCH
from .sites import site_of

#: Classes of timm that attend over channels: their "keys" are features, so dropping or blurring them means nothing.
_CHANNEL_ATTENTION = {"XCA", "ChannelAttention", "ChannelAttentionV2"}

#: Reasons that reading and running give alike.
OWN_SOFTMAX = "it computes its softmax itself, without scaled_dot_product_attention"
FLEX = (
    "it calls flex_attention, whose score_mod sees one logit at a time and draws no random numbers: "
    "use scaled_dot_product_attention in training"
)


class Found(NamedTuple):
    """An attention module: reachable by `kind`, or not, for `reason`."""

    name: str
    module: nn.Module
    kind: str | None
    reason: str | None
    #: False for a softmax between products in a module that nothing calls attention: a mixture of experts has that too.
    certain: bool = True


def find_attention(model: nn.Module) -> list[Found]:
    """Every attention module of `model`, in the order of `named_modules`."""
    found = [entry for name, module in model.named_modules() if (entry := _classify(clean_name(name), module))]
    return [leaf for entry in found if (leaf := _without_nested(entry, found))]


def clean_name(name: str) -> str:
    """The name without what `torch.compile`, FSDP and activation checkpointing put into it."""
    for wrapper in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
        name = name.replace(f"{wrapper}.", "").removesuffix(f".{wrapper}")
    return name


def _classify(name: str, module: nn.Module) -> Found | None:
    if site_of(module) is not None:
        return Found(name, module, None, "it is attached already")
    cls = own_class(type(module))
    if isinstance(module, nn.MultiheadAttention) and cls.forward is nn.MultiheadAttention.forward:
        return _reachable(name, module, "multihead")
    if cls.__module__.partition(".")[0] == "torch":
        return None  # the modules of torch itself attend by nn.MultiheadAttention alone
    code = read(module)
    if "ALL_ATTENTION_FUNCTIONS" in code.names:
        reason = transformers.why_unreachable(module)
        return Found(name, module, None, reason) if reason else _reachable(name, module, "transformers")
    if cls.__name__ in _CHANNEL_ATTENTION:
        return Found(name, module, None, "it attends over channels, not over tokens")
    if _attends(code):
        return _reachable(name, module, "sdpa with a switch" if SWITCH in module.__dict__ else "sdpa")
    if "flex_attention" in code.names or any(_is_flex(function) for function in code.functions.values()):
        return Found(name, module, None, FLEX)
    named_so = "att" in f"{cls.__name__} {name.rpartition('.')[2]}".lower()
    if _has_softmax(module, code) and (named_so or code.products > 1):
        return Found(name, module, None, OWN_SOFTMAX, certain=named_so)
    return None


def _attends(code: Read) -> bool:
    """Whether it leads to a function that a site can exchange."""
    named = {"scaled_dot_product_attention", "multi_head_attention_forward"} & code.names
    reached = (F.scaled_dot_product_attention, F.multi_head_attention_forward, nn.MultiheadAttention.forward)
    return bool(named) or any(map(code.loads, reached))


def _is_flex(function: object) -> bool:
    # By name: importing it loads the compiler.
    return (getattr(function, "__module__", ""), getattr(function, "__name__", "")) == (
        "torch.nn.attention.flex_attention",
        "flex_attention",
    )


def _has_softmax(module: nn.Module, code: Read) -> bool:
    """A softmax, or the products and the sum of exponentials that it is written out with."""
    if {"softmax", "Softmax"} & code.names or any(isinstance(child, nn.Softmax) for child in module.children()):
        return True
    if any(isinstance(value, nn.Softmax) for value in vars(module).values()):
        return True
    return any(getattr(function, "__name__", "") == "softmax" for function in code.functions.values())


def _reachable(name: str, module: nn.Module, kind: str) -> Found:
    if "forward" in module.__dict__:
        return Found(name, module, None, "its forward was replaced on the instance (detach that hook first)")
    return Found(name, module, kind, None)


def _without_nested(entry: Found, found: list[Found]) -> Found | None:
    """A site around other sites would perturb their attention twice."""
    prefix = f"{entry.name}." if entry.name else ""
    if entry.kind is None or not any(o.kind and o is not entry and o.name.startswith(prefix) for o in found):
        return entry
    if entry.kind == "transformers":
        return None  # a model that only passes the look-up on
    return entry._replace(kind=None, reason="it contains other attention modules, which are sites themselves")
