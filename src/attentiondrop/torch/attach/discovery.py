"""Find the attention in a model by what its classes do, not by a list of their names."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn
from torch.nn import functional as F

from . import transformers
from .exchange_class import own_class
from .read_code import Read, read
from .sdpa import SWITCH
from .sites import site_of

#: Classes of timm and transformers that attend over channels: their "keys" are features, so dropping or blurring them
#: makes no sense.
_CHANNEL_ATTENTION = {"XCA", "ChannelAttention", "ChannelAttentionV2", "Florence2VisionChannelAttention"}

#: Names that end in "softmax", but belong to a loss or to a choice.
_OTHER_SOFTMAX = {"log_softmax", "LogSoftmax", "gumbel_softmax", "AdaptiveLogSoftmax"}

#: Reasons that both reading the code (here) and running it (`find_by_running`) give.
OWN_SOFTMAX = "it computes its softmax itself, without scaled_dot_product_attention"
DEFORMABLE = "its weights belong to points that it predicts: it has no products of queries and keys to perturb"
FLEX = (
    "it calls flex_attention, whose score_mod sees one logit at a time and draws no random numbers: "
    "use scaled_dot_product_attention in training"
)


class Found(NamedTuple):
    """An attention module: `way` says how to reach it, or `reason` says why it cannot be reached."""

    name: str
    module: nn.Module
    way: str | None
    reason: str | None
    #: False if there is only a softmax between products, and no "att" in the names: a mixture of experts has that too.
    certain: bool = True


def find_attention(model: nn.Module) -> list[Found]:
    """Every attention module of `model`, in the order of `named_modules`."""
    found = [entry for name, module in model.named_modules() if (entry := _classify(clean_name(name), module))]
    return [leaf for entry in found if (leaf := _without_nested(entry, found))]


def clean_name(name: str) -> str:
    """The name without the parts that `torch.compile`, FSDP and activation checkpointing add."""
    for wrapper in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
        name = name.replace(f"{wrapper}.", "").removesuffix(f".{wrapper}")
    return name


def _classify(name: str, module: nn.Module) -> Found | None:
    if site_of(module) is not None:
        return Found(name, module, None, "it is attached already, and keeps its spec")
    cls = own_class(type(module))
    if isinstance(module, nn.MultiheadAttention) and cls.forward is nn.MultiheadAttention.forward:
        return _reachable(name, module, "multihead")
    if cls.__module__.partition(".")[0] == "torch":
        return None  # the modules of torch itself attend by nn.MultiheadAttention alone
    if cls.__name__ in _CHANNEL_ATTENTION:
        return Found(name, module, None, "it attends over channels, not over tokens")
    code = read(module)
    if "ALL_ATTENTION_FUNCTIONS" in code.names:
        reason = transformers.why_unreachable(module)
        return Found(name, module, None, reason) if reason else _reachable(name, module, "transformers")
    if _attends(code):
        return _reachable(name, module, "sdpa with a switch" if SWITCH in module.__dict__ else "sdpa")
    if "flex_attention" in code.names or any(_is_flex(function) for function in code.functions.values()):
        return Found(name, module, None, FLEX)
    if not _has_softmax(module, code):
        return None
    is_class_so = "att" in cls.__name__.lower()
    # (What is only called so may be a part beside the attention: a hyper-connection has a softmax, but no product.)
    named_so = is_class_so or ("att" in name.rpartition(".")[2].lower() and code.products > 0)
    if named_so and "Deformable" in cls.__name__:
        return Found(name, module, None, DEFORMABLE)
    if named_so or code.products > 1:
        return Found(name, module, None, OWN_SOFTMAX, certain=named_so)
    return None


def _attends(code: Read) -> bool:
    """Whether the code leads to a function that a site can exchange."""
    named = {"scaled_dot_product_attention", "multi_head_attention_forward"} & code.names
    reached = (F.scaled_dot_product_attention, F.multi_head_attention_forward, nn.MultiheadAttention.forward)
    return bool(named) or any(map(code.loads, reached))


def _is_flex(function: object) -> bool:
    # Compared by name: importing flex_attention would load the compiler.
    return (getattr(function, "__module__", ""), getattr(function, "__name__", "")) == (
        "torch.nn.attention.flex_attention",
        "flex_attention",
    )


def _has_softmax(module: nn.Module, code: Read) -> bool:
    """Whether the module has or calls a softmax."""
    # (A library may have a class of its own for it, such as XSoftmax of DeBERTa and SEW-D.)
    named = any(name.lower().endswith("softmax") and name not in _OTHER_SOFTMAX for name in code.names)
    if named or any(isinstance(child, nn.Softmax) for child in module.children()):
        return True
    if any(isinstance(value, nn.Softmax) for value in vars(module).values()):
        return True
    return any(getattr(function, "__name__", "") == "softmax" for function in code.functions.values())


def _reachable(name: str, module: nn.Module, way: str) -> Found:
    if "forward" in module.__dict__:
        return Found(name, module, None, "its forward was replaced on the instance (detach that hook first)")
    return Found(name, module, way, None)


def _without_nested(entry: Found, found: list[Found]) -> Found | None:
    """Leave out modules that contain other sites: a site around sites would perturb their attention twice."""
    prefix = f"{entry.name}." if entry.name else ""
    inside = (o for o in found if o is not entry and o.name.startswith(prefix))
    if entry.way is None or not any(o.way or site_of(o.module) is not None for o in inside):
        return entry
    if entry.way == "transformers":
        return None  # a model that only passes the attention function on to its layers
    return entry._replace(way=None, reason="it contains other attention modules, which are sites themselves")
