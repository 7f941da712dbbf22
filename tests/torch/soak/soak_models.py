"""Tiny models of every kind that attention is reached in, each with random weights and inputs in float64.

None has dropout of its own, and none rounds to float32 inside: in float64 they are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from checks import randomise
from consistency_models import BERT, GPT2, SIZES, T5, exact_norms, hugging
from soak_masks import ALIKE, MASKS, make_mask
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attentiondrop.torch import attach, attention

if TYPE_CHECKING:
    from soak_cases import Case

SIZE = 8  # of a head
CLASSES = 5
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """How a model is built for a case, what it takes, and what it can be combined with."""

    build: Callable[[Case], nn.Module]
    inputs: Callable[[Case, torch.Generator], Inputs]
    masks: tuple[str, ...] = ("none",)
    #: The masks under which a blur may act along the queries.
    both_axes: tuple[str, ...] = ()
    #: Of queries, and of keys and values.
    heads: tuple[tuple[int, int], ...] = ((2, 2), (4, 4))
    lengths: tuple[int, ...] = (4, 7, 11, 16)
    #: Whether there may be another number of keys than queries.
    cross: bool = False
    #: Whether its attention is reached by `attach`; otherwise it calls `attention`.
    attached: bool = True
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float32, torch.float32, torch.float64)


class Checkpointing(nn.Module):
    """Runs its parts in checkpoints, if it is told so."""

    checkpointing = "none"

    def part(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.checkpointing == "none":
            return function(*args)
        return checkpoint(function, *args, use_reentrant=self.checkpointing == "reentrant")


class Direct(Checkpointing):
    """`attention` itself, with all of its arguments."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.spec, self.backend = case.spec, case.backend
        self.options = {"is_causal": case.mask == "causal", "dropout_p": case.dropout_p, "enable_gqa": True}

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None) -> Tensor:
        return self.part(self.attend, q, k, v, bias, mask)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None) -> Tensor:
        return attention(q, k, v, self.spec, mask, bias=bias, backend=self.backend, **self.options)


class Sdpa(nn.Module):
    """Attention as people write it, with a residual connection, keys and values from `memory`."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.heads, self.key_heads = case.heads
        self.causal, self.dropout_p = case.mask == "causal", case.dropout_p
        size = self.heads * SIZE
        self.norm = nn.LayerNorm(size)
        self.q, self.kv = nn.Linear(size, size), nn.Linear(size, 2 * self.key_heads * SIZE)
        self.out = nn.Linear(size, size)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        q = self.q(self.norm(x)).unflatten(-1, (self.heads, SIZE)).transpose(1, 2)
        k, v = self.kv(memory).unflatten(-1, (2, self.key_heads, SIZE)).transpose(1, 3).unbind(2)
        grouped = self.heads != self.key_heads
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout_p, is_causal=self.causal, enable_gqa=grouped
        )
        return x + self.out(y.transpose(1, 2).flatten(-2))


class SdpaModel(Checkpointing):
    """A few of them."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Sdpa(case) for _ in range(case.layers))

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            x = self.part(layer, x, x if memory is None else memory, mask)
        return x


class Encoder(Checkpointing):
    """`nn.TransformerEncoderLayer`, which has an `nn.MultiheadAttention` inside."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        size = case.heads[0] * SIZE
        self.layers = nn.ModuleList(
            # GELU: at the corner of a ReLU a rounding would decide on a gradient.
            nn.TransformerEncoderLayer(size, case.heads[0], size, 0.0, "gelu", batch_first=case.number % 2 == 0)
            for _ in range(case.layers)
        )
        for layer in self.layers:
            layer.self_attn.dropout = case.dropout_p

    def forward(self, x: Tensor, mask: Tensor | None, padding: Tensor | None) -> Tensor:
        batch_first = self.layers[0].self_attn.batch_first
        x = x if batch_first else x.transpose(0, 1)
        for layer in self.layers:
            x = self.part(layer, x, mask, padding)
        return x if batch_first else x.transpose(0, 1)


def normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def direct_inputs(case: Case, g: torch.Generator) -> Inputs:
    (heads, key_heads), (queries, keys) = case.heads, case.lengths
    return {
        "q": normal(g, case.batch, heads, queries, SIZE),
        "k": normal(g, case.batch, key_heads, keys, SIZE),
        "v": normal(g, case.batch, key_heads, keys, SIZE),
        "bias": normal(g, 1, heads, queries, keys) if case.number % 4 < 2 else None,
        "mask": make_mask(case.mask, case.batch, heads, queries, keys, g),
    }


def sdpa_inputs(case: Case, g: torch.Generator) -> Inputs:
    size, (queries, keys) = case.heads[0] * SIZE, case.lengths
    return {
        "x": normal(g, case.batch, queries, size),
        "memory": None if queries == keys else normal(g, case.batch, keys, size),
        "mask": make_mask(case.mask, case.batch, case.heads[0], queries, keys, g),
    }


def encoder_inputs(case: Case, g: torch.Generator) -> Inputs:
    length = case.lengths[0]
    padding, mask = None, make_mask(case.mask, case.batch, case.heads[0], length, length, g)
    if case.mask == "causal":
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.float64)
    elif case.mask == "keys" and mask is not None:
        padding, mask = ~mask[:, 0, 0], None
    elif mask is not None:
        mask = ~mask[0, 0] if mask.dtype == torch.bool else mask[0, 0]
    return {"x": normal(g, case.batch, length, case.heads[0] * SIZE), "mask": mask, "padding": padding}


def images(case: Case, g: torch.Generator) -> Inputs:
    return {"x": normal(g, case.batch, 3, 4 * case.lengths[0], 4)}


def text(case: Case, g: torch.Generator) -> Inputs:
    length = case.lengths[0]
    attending = torch.ones(case.batch, length, dtype=torch.long)
    if case.mask == "keys":
        attending[-1, length // 2 + 1 :] = 0
    elif case.mask == "left":
        attending[-1, : length // 2] = 0
    tokens = torch.randint(3, 50, (case.batch, length), generator=g)
    return {"input_ids": tokens} | ({} if case.mask == "none" else {"attention_mask": attending})


def two_texts(case: Case, g: torch.Generator) -> Inputs:
    return text(case, g) | {"decoder_input_ids": torch.randint(3, 50, (case.batch, case.lengths[1]), generator=g)}


def vit(case: Case) -> nn.Module:
    timm = pytest.importorskip("timm")
    return timm.models.VisionTransformer(
        img_size=(4 * case.lengths[0], 4),
        patch_size=4,
        embed_dim=case.heads[0] * SIZE,
        depth=case.layers,
        num_heads=case.heads[0],
        num_classes=CLASSES,
        attn_drop_rate=case.dropout_p,
    )


def transformer(model: str, names: dict[str, str], fixed: dict[str, Any]) -> Callable[[Case], nn.Module]:
    """A builder: `names` says what the configuration calls "size", "layers", "heads", "key_heads" and "dropout"."""

    def build(case: Case) -> nn.Module:
        values = {
            "size": case.heads[0] * SIZE,
            "layers": case.layers,
            "heads": case.heads[0],
            "key_heads": case.heads[1],
            "dropout": case.dropout_p,
        }
        return hugging(model, **{**fixed, **{field: values[what] for what, field in names.items()}})

    return build


COMMON = {"size": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
MODELS = {
    "attention": Model(
        Direct,
        direct_inputs,
        MASKS,
        ALIKE,
        heads=((2, 2), (4, 2), (3, 1)),
        lengths=(1, 5, 9, 40),
        cross=True,
        attached=False,
        dtypes=(torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16),
    ),
    "sdpa": Model(SdpaModel, sdpa_inputs, MASKS, ALIKE, lengths=(4, 7, 11, 40), cross=True),
    "grouped sdpa": Model(SdpaModel, sdpa_inputs, MASKS, ALIKE, heads=((4, 2), (4, 1)), cross=True),
    "encoder layer": Model(
        Encoder, encoder_inputs, ("none", "causal", "keys", "pairs", "additive", "additive -inf"), ("none", "keys")
    ),
    "timm vit": Model(vit, images, both_axes=("none",)),
    "gpt2": Model(
        transformer(
            "GPT2LMHeadModel", {"size": "n_embd", "layers": "n_layer", "heads": "n_head", "dropout": "attn_pdrop"}, GPT2
        ),
        text,
        ("none", "keys", "left"),
    ),
    "bert": Model(
        transformer(
            "BertForTokenClassification",
            {**COMMON, "dropout": "attention_probs_dropout_prob"},
            {**BERT, "hidden_act": "gelu"},
        ),
        text,
        ("none", "keys", "left"),
        ("none",),
    ),
    "llama": Model(
        transformer(
            "LlamaForCausalLM", {**COMMON, "key_heads": "num_key_value_heads", "dropout": "attention_dropout"}, SIZES
        ),
        text,
        ("none", "keys", "left"),
        heads=((2, 2), (4, 2)),
    ),
    "t5": Model(
        transformer(
            "T5ForConditionalGeneration",
            {"size": "d_model", "layers": "num_layers", "heads": "num_heads"},
            T5 | {"feed_forward_proj": "gated-gelu"},
        ),
        two_texts,
        ("none", "keys"),
        lengths=(4, 6, 9),
        cross=True,
    ),
}


def build(case: Case) -> nn.Module:
    """The model of a case in training mode and float64, the same one each time."""
    torch.manual_seed(case.number)
    return exact_norms(randomise(MODELS[case.model].build(case), scale=1.5).double()).train()


def prepare(model: nn.Module, case: Case, backend: str, checkpointing: str) -> list[nn.Parameter]:
    """Attach the spec, switch checkpointing on; returns the rates that are learned."""
    if checkpointing != "none":
        if isinstance(model, Checkpointing):
            model.checkpointing = checkpointing
        elif hasattr(model, "gradient_checkpointing_enable"):
            model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
            model.enable_input_require_grads()
        else:
            model.set_grad_checkpointing()  # timm has a kind of its own
    if isinstance(model, Direct):
        model.backend = backend
        return []
    attachment = attach(model, case.spec, backend=backend)
    attachment.set_progress(case.progress)
    return list(attachment.parameters())
