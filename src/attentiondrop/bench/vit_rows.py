"""The rows of the training step. Each changes the attention of a timm model, and undoes the change afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import bad_argument
from ..torch import attach
from .rows import ListingRow, OursRow, Row, SdpaRow
from .tensors import Attend

SPECS = (
    "blur(sigma_max=0.5)",
    "hard(p=0.1,k=5)",
    "hard(p=0.3,k=10,fill=-inf)",
    "dropkey(p=0.1)",
    "noise(sigma=0.1)",
    "attndropout(p=0.1)",
)


@dataclass(frozen=True)
class VitRow:
    """`change` is a context around the steps; `attention` is the same attention alone, which is checked first."""

    name: str
    kind: str
    attention: Row
    change: Callable[[nn.Module], AbstractContextManager[object]]


def vit_rows() -> list[VitRow]:
    """The whole table, the baseline first."""
    plain, dropout = SdpaRow(), SdpaRow(dropout=0.1)
    rows = [
        VitRow(plain.name, plain.kind, plain, lambda model: nullcontext()),
        VitRow(dropout.name, dropout.kind, dropout, attention_dropout),
    ]
    for variant in ("hard masking", "blur"):
        listing = ListingRow(variant)
        rows.append(VitRow(listing.name, listing.kind, listing, _swap(listing)))
    for text in SPECS:
        ours = OursRow(text)
        rows.append(VitRow(ours.name, ours.kind, ours, _attach(ours)))
    return rows


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """timm's attention modules, with fused attention on."""
    found = [module for module in model.modules() if hasattr(module, "attn_drop") and hasattr(module, "num_heads")]
    if not found or not all(getattr(module, "fused_attn", False) for module in found):
        raise bad_argument("model", "a timm vision transformer with fused attention", type(model).__name__)
    return found


@contextmanager
def attention_dropout(model: nn.Module, p: float = 0.1) -> Iterator[None]:
    """Set the rate of SDPA's own dropout, which timm's modules use in training."""
    dropouts: list[nn.Dropout] = [module.attn_drop for module in attention_modules(model)]  # type: ignore[misc]
    before = [dropout.p for dropout in dropouts]
    try:
        for dropout in dropouts:
            dropout.p = p
        yield
    finally:
        for dropout, old in zip(dropouts, before, strict=True):
            dropout.p = old


@contextmanager
def sdpa_replaced(model: nn.Module, attend: Attend) -> Iterator[None]:
    """Replace SDPA by `attend` in the model's attention code, which finds SDPA through the global `F` of its module.

    A function mode around the forward would be harder to compile than this plain global.
    """

    def replacement(q: Tensor, k: Tensor, v: Tensor, *args: object, **kwargs: object) -> Tensor:
        return attend(q, k, v)

    homes = {sys.modules[type(module).__module__] for module in attention_modules(model)}
    names = SimpleNamespace(**vars(F))
    names.scaled_dot_product_attention = replacement
    try:
        for home in homes:
            home.F = names  # type: ignore[attr-defined]
        yield
    finally:
        for home in homes:
            home.F = F  # type: ignore[attr-defined]


def _swap(listing: ListingRow) -> Callable[[nn.Module], AbstractContextManager[object]]:
    return lambda model: sdpa_replaced(model, listing.function)


def _attach(ours: OursRow) -> Callable[[nn.Module], AbstractContextManager[object]]:
    return lambda model: attach(model, ours.spec)
