"""Models of timm and transformers: no false alarm where all is reached, and a name and a reason for all that is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import attach

timm = pytest.importorskip("timm")
tf = pytest.importorskip("transformers")

HARD = ad.HardMasking(p=0.4, k=3)
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = {**SMALL, "vocab_size": 60}
IDS = {"input_ids": torch.arange(14).view(2, 7)}
#: T5 and its kind.
T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2}

Built = tuple[nn.Module, dict[str, Any]]


def image(name: str, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        if not timm.is_model(name):
            pytest.skip(f"timm {timm.__version__} has no {name}")
        return timm.create_model(name, num_classes=5, **options), {"x": torch.randn(2, 3, 32, 32)}

    return build


def gpt2() -> Built:
    options = {"bos_token_id": 0, "eos_token_id": 0}
    return tf.GPT2Model(tf.GPT2Config(vocab_size=60, n_embd=32, n_layer=1, n_head=2, **options)), IDS


def bert() -> Built:
    return tf.BertModel(tf.BertConfig(**WORDS)), IDS


def t5() -> Built:
    return tf.T5Model(tf.T5Config(**T5)), {**IDS, "decoder_input_ids": IDS["input_ids"]}


def mixtral() -> Built:
    return tf.MixtralModel(tf.MixtralConfig(**WORDS, num_key_value_heads=2, num_local_experts=4)), IDS


def switch() -> Built:
    sparse = {"num_decoder_layers": 1, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    config = tf.SwitchTransformersConfig(**T5, **sparse)
    return tf.SwitchTransformersModel(config), {**IDS, "decoder_input_ids": IDS["input_ids"]}


def wavlm_config() -> Any:
    convolutions = {"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3)}
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    return tf.WavLMConfig(**SMALL, **convolutions, **positions)


def speech() -> Built:
    decoder = tf.BertConfig(**WORDS, is_decoder=True, add_cross_attention=True)
    config = tf.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(wavlm_config(), decoder)
    config.decoder_start_token_id = config.pad_token_id = 0
    inputs = {"input_values": torch.randn(2, 400), "decoder_input_ids": IDS["input_ids"]}
    return tf.SpeechEncoderDecoderModel(config=config), inputs


#: How to build it, and how many sites it has.
REACHED: dict[str, tuple[Callable[[], Built], int]] = {
    "vit": (image("vit_tiny_patch16_224", img_size=32, depth=2), 2),
    "deit": (image("deit_tiny_distilled_patch16_224", img_size=32, depth=1), 1),
    "swin": (image("swin_tiny_patch4_window7_224", img_size=32, embed_dim=16, depths=(1,), num_heads=(2,)), 1),
    "gpt2": (gpt2, 1),
    "bert": (bert, 1),
    "t5": (t5, 3),
    "mixtral, a mixture of experts": (mixtral, 1),
    "switch, another": (switch, 3),
    "speech with WavLM": (speech, 3),
}


@pytest.mark.parametrize("name", REACHED)
def test_no_false_alarm(name: str) -> None:
    build, sites = REACHED[name]
    model, inputs = build()
    attachment = attach(model, HARD, example=inputs)
    assert len(attachment.sites) == sites and not attachment.unreached
    attachment.remove()
    attachment = attach(model, HARD)
    model.train()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=ad.AttentionDropWarning)
        model(**inputs)
    assert not attachment.unreached


def test_cait_says_the_same_by_reading_and_by_running() -> None:
    model, inputs = image("cait_xxs24_224", img_size=32, depth=2, embed_dim=32, num_heads=2)()
    with pytest.warns(ad.AttentionDropWarning, match="TalkingHeadAttn  it computes its softmax itself"):
        unreached = attach(model, HARD, example=inputs).unreached
    assert [entry.name for entry in unreached] == ["blocks.0.attn", "blocks.1.attn"]


def codegen() -> Built:
    options = {"n_positions": 32, "n_ctx": 32, "bos_token_id": 0, "eos_token_id": 0}
    config = tf.CodeGenConfig(vocab_size=60, n_embd=32, n_layer=1, n_head=4, rotary_dim=4, **options)
    return tf.CodeGenModel(config), IDS


def perceiver() -> Built:
    heads = {"num_self_attention_heads": 2, "num_cross_attention_heads": 2}
    sizes = {"num_latents": 4, "d_latents": 16, "d_model": 16, "num_blocks": 1, "num_self_attends_per_block": 1}
    config = tf.PerceiverConfig(**sizes, **heads)
    return tf.PerceiverModel(config), {"inputs": torch.randn(2, 9, 16)}


def vilt() -> Built:
    return tf.ViltModel(tf.ViltConfig(**WORDS, image_size=32, patch_size=16)), {}


def layoutlmv3() -> Built:
    return tf.LayoutLMv3Model(tf.LayoutLMv3Config(**WORDS, visual_embed=False)), {}


def sew_d() -> Built:
    convolutions = {"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3)}
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    return tf.SEWDModel(tf.SEWDConfig(**SMALL, **convolutions, **positions)), {}


#: How to build it, and the name and class of its first attention.
REFUSED: dict[str, tuple[Callable[[], Built], str]] = {
    "vilt": (vilt, "encoder.layer.0.attention.attention  ViltSelfAttention"),
    "codegen": (codegen, "h.0.attn  CodeGenAttention"),
    "perceiver": (perceiver, "encoder.cross_attention.attention.self  PerceiverSelfAttention"),
    "layoutlmv3": (layoutlmv3, "encoder.layer.0.attention.self  LayoutLMv3SelfAttention"),
    "sew-d, whose softmax is a class": (sew_d, "encoder.encoder.layer.0.attention.self  DisentangledSelfAttention"),
    "shvit": (image("shvit_s1"), "SHSA"),
    "efficientvim": (image("efficientvim_m1"), "HSMSSD"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_module_and_reason(name: str) -> None:
    build, first = REFUSED[name]
    model, _ = build()
    with pytest.raises(ad.AttachError, match="seen, but out of reach") as error:
        attach(model, HARD)
    assert first in str(error.value) and "it computes its softmax itself" in str(error.value)


def test_deformable_attention_is_said_to_have_no_logits() -> None:
    from transformers.models.deformable_detr import modeling_deformable_detr as detr

    config = tf.DeformableDetrConfig(
        d_model=16, encoder_attention_heads=2, decoder_attention_heads=2, decoder_ffn_dim=16
    )
    config._attn_implementation = "sdpa"
    layer = detr.DeformableDetrDecoderLayer(config)
    with pytest.warns(ad.AttentionDropWarning, match="its weights belong to points that it predicts"):
        attachment = attach(layer, HARD)
    assert [site.name for site in attachment.sites] == ["self_attn"]
    assert [entry.name for entry in attachment.unreached] == ["encoder_attn"]


@pytest.mark.parametrize("given", ["nothing", "masks", "extra keys", "own projections", "keys and values", "weights"])
def test_multi_head_attention_forward_without_a_perturbation_is_torchs_own(given: str) -> None:
    """What a site computes for `F.multi_head_attention_forward` when nothing is dropped."""
    torch.manual_seed(0)

    def tensor(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    options: dict[str, dict[str, Any]] = {
        "masks": {"key_padding_mask": tensor(3, 5), "attn_mask": tensor(12, 6, 5)},
        "own projections": {
            "use_separate_proj_weight": True,
            **{f"{name}_proj_weight": tensor(16, 16) for name in "qkv"},
        },
        "keys and values": {"static_k": tensor(12, 4, 4), "static_v": tensor(12, 4, 4)},
        "weights": {"need_weights": True, "average_attn_weights": False},
    }
    extra = (tensor(1, 1, 16), tensor(1, 1, 16), True) if given == "extra keys" else (None, None, False)
    packed = tensor(48, 16), tensor(48)

    class Module(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Any:
            return F.multi_head_attention_forward(
                *(q, k, k, 16, 4, *packed, *extra, 0.0, out, None),
                **{"need_weights": False, **options.get(given, {})},
            )

    out, q, k = tensor(16, 16), tensor(6, 3, 16), tensor(5, 3, 16)
    model = Module()
    want = model(q, k)
    attach(model, ad.HardMasking(p=0.0, k=1))
    have = model(q, k)
    torch.testing.assert_close(have[0], want[0], rtol=1e-12, atol=1e-12)
    if given == "weights":
        torch.testing.assert_close(have[1], want[1], rtol=1e-12, atol=1e-12)
    assert given == "weights" or have[1] is None
