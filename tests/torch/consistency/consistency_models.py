"""Tiny models without dropout in float64, with inputs, for all tests of the consistency loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from checks import randomise
from torch import Tensor, nn

BATCH, LENGTH, CLASSES = 3, 7, 5
#: A little of everything: what is drawn once in a call, at each position, for each head, and a choice. (With a choice,
#: each view has an attention call of its own.)
SPEC = "blur(sigma_max=2.0,sigma_min=0.2)+oneof(hard(p=0.5,k=3),dropkey(p=0.4))+drophead(p=0.3)+attndropout(p=0.2)"
#: Without a choice, so that all views share one call.
SHARED_CALL = "blur(sigma_max=2.0,sigma_min=0.2)+hard(p=0.5,k=3)+drophead(p=0.3)+attndropout(p=0.2)"


@dataclass
class Case:
    """A model, its inputs, and patterns of sites to attach to: `late` leaves layers before it to be shared."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    late: str
    #: How many blocks run before the views part with `"shared"`.
    shared: int
    logits: Callable[[Any], Tensor] = lambda output: output if isinstance(output, Tensor) else output.logits
    mask: Callable[[], Tensor | None] = field(default=lambda: None)


class Classifier(nn.Module):
    """An nn.TransformerEncoder with the masks that one gives it."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor, src_key_padding_mask: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return self.head(self.encoder(x, mask=mask, src_key_padding_mask=src_key_padding_mask))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def floats(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(), dtype=torch.float64)


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(3, 50, (BATCH, length), generator=generator())


def padding(length: int = LENGTH) -> Tensor:
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, length - 3 :] = 0
    return mask


def vit() -> nn.Module:
    timm = pytest.importorskip("timm")
    return timm.models.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=16, depth=4, num_heads=4, num_classes=CLASSES
    )


def torchvision_vit() -> nn.Module:
    torchvision = pytest.importorskip("torchvision")
    return torchvision.models.VisionTransformer(16, 4, 4, 4, 16, 32, num_classes=CLASSES)


def hugging(model: str, **fields: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, model)
    return cls(cls.config_class(**fields))


SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT = {**SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": CLASSES}
GPT2 = {
    "vocab_size": 50,
    "n_embd": 16,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 32,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
T5 = {
    "vocab_size": 50,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 32,
    "num_layers": 3,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}


def text() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "attention_mask": padding()}


def two_texts() -> dict[str, Tensor]:
    return text() | {"decoder_input_ids": tokens(5), "decoder_attention_mask": padding(5)}


CASES = {
    "vit": Case(vit, lambda: floats(BATCH, 3, 16, 16), "blocks.[23].*", 2),
    "torchvision": Case(torchvision_vit, lambda: (floats(BATCH, 3, 16, 16),), "*layer_3*", 3),
    "encoder": Case(
        Classifier,
        lambda: {
            "x": floats(BATCH, LENGTH, 16),
            "src_key_padding_mask": padding() == 0,
            "mask": torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1),
        },
        "encoder.layers.3.*",
        3,
        mask=padding,
    ),
    # As long as the batch is large: the mask of [rows, keys] must not be taken for one of the batch.
    "square": Case(
        Classifier,
        lambda: {"x": floats(BATCH, BATCH, 16), "mask": torch.ones(BATCH, BATCH, dtype=torch.bool).triu(1)},
        "encoder.layers.2.*",
        2,
    ),
    "bert": Case(lambda: hugging("BertForSequenceClassification", **BERT), text, "*.layer.3.*", 3),
    "bert tokens": Case(lambda: hugging("BertForTokenClassification", **BERT), text, "*.layer.[23].*", 2, mask=padding),
    "gpt2": Case(lambda: hugging("GPT2LMHeadModel", **GPT2), text, "*.h.3.*", 3, mask=padding),
    "llama": Case(
        lambda: hugging("LlamaForCausalLM", **SIZES, num_key_value_heads=2), text, "*.layers.2.*", 2, mask=padding
    ),
    "t5 decoder": Case(
        lambda: hugging("T5ForConditionalGeneration", **T5),
        two_texts,
        "decoder.block.2.*",
        5,
        mask=lambda: padding(5),
    ),
    "t5 encoder": Case(
        lambda: hugging("T5ForConditionalGeneration", **T5),
        two_texts,
        "encoder.block.[12].*",
        1,
        mask=lambda: padding(5),
    ),
    "t5 both": Case(
        lambda: hugging("T5ForConditionalGeneration", **T5), two_texts, "*.block.2.*", 2, mask=lambda: padding(5)
    ),
}


def exact_norms(model: nn.Module) -> nn.Module:
    """The model with norms that compute in the dtype they are given, in place of those that round to float32."""
    for module in list(model.modules()):
        for key, child in module.named_children():
            if type(child).__name__ in ("T5LayerNorm", "LlamaRMSNorm"):
                exact = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=torch.float64)
                exact.load_state_dict(child.state_dict())
                setattr(module, key, exact)
    return model


def build(name: str) -> nn.Module:
    """The model in training mode, the same one each time."""
    torch.manual_seed(0)
    return exact_norms(randomise(CASES[name].build(), scale=1.5).double().train())
