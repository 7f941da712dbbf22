"""Sites by kind: self-attention of encoders and decoders, and cross-attention."""

from __future__ import annotations

import copy
import pickle
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.errors import ArgumentError, AttachError
from attentiondrop.torch import attach
from attentiondrop.torch.attach.attention_kinds import kinds_of_modules
from attentiondrop.torch.attach.sites import Site
from attentiondrop.torch.call.leaves import Driven

HARD = ad.HardMasking(p=0.5, k=2)


def kinds(attachment) -> dict[str, str | None]:
    return {site.name: site.kind for site in attachment.sites}


def torchs() -> nn.Transformer:
    return nn.Transformer(16, 2, 1, 2, 16, batch_first=True)


TORCHS = {
    "encoder.layers.0.self_attn": "encoder",
    "decoder.layers.0.self_attn": "decoder",
    "decoder.layers.0.multihead_attn": "cross",
    "decoder.layers.1.self_attn": "decoder",
    "decoder.layers.1.multihead_attn": "cross",
}


def test_sites_of_torchs_transformer_say_their_kind() -> None:
    assert kinds(attach(torchs(), HARD)) == TORCHS


@pytest.mark.parametrize("chosen", [("encoder",), ("decoder",), ("cross",), ("decoder", "cross"), "cross"])
def test_only_the_chosen_kinds_are_attached(chosen) -> None:
    names = (chosen,) if isinstance(chosen, str) else chosen
    model = torchs()
    attachment = attach(model, HARD, kinds=chosen)
    assert kinds(attachment) == {name: kind for name, kind in TORCHS.items() if kind in names}
    assert attachment.kinds == names and attachment.unreached == ()
    assert str(attachment).splitlines()[1].endswith(names[0])


def test_each_kind_can_have_its_own_attachment() -> None:
    model = torchs()
    first, second = attach(model, HARD, kinds="encoder"), attach(model, ad.BlurSmoothing(), kinds=("decoder", "cross"))
    assert {site.spec for site in first.sites} == {HARD} and len(second.sites) == 4 and second.unreached == ()


def test_patterns_and_kinds_together() -> None:
    attachment = attach(torchs(), {"*.1.*": HARD, "*": ad.DropKey()}, kinds=("cross",))
    assert {site.name: site.spec for site in attachment.sites} == {
        "decoder.layers.0.multihead_attn": ad.DropKey(),
        "decoder.layers.1.multihead_attn": HARD,
    }


def transformers_model(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    both = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "decoder_start_token_id": 1,
    }
    plain = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    settings = {
        "Bart": both,
        "Marian": both,
        "T5": {"d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 16, "num_layers": 1, "decoder_start_token_id": 0},
        "GPT2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "add_cross_attention": True},
        "Bert": dict(plain, is_decoder=True, add_cross_attention=True),
        "Llama": plain,
        "ViT": plain,
    }[name]
    config = getattr(transformers, f"{name}Config")(**({} if name == "ViT" else small), **settings)
    return getattr(transformers, f"{name}Model")(config)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Bart", ["encoder", "decoder", "cross"]),
        ("Marian", ["encoder", "decoder", "cross"]),
        ("T5", ["encoder", "decoder", "cross"]),
        ("GPT2", ["decoder", "cross"]),
        ("Bert", ["decoder", "cross"]),
        ("Llama", ["decoder"]),
        ("ViT", ["encoder"]),
    ],
)
def test_models_of_transformers(name: str, expected: list[str]) -> None:
    model = transformers_model(name)
    everywhere = attach(model, HARD)
    assert list(kinds(everywhere).values()) == expected
    everywhere.remove()
    for kind in expected:
        with attach(model, HARD, kinds=kind) as attachment:
            assert set(kinds(attachment).values()) == {kind}


class Looking(nn.Module):
    """Attention that does not say its kind."""

    def forward(self, x, y=None):
        y = x if y is None else y
        return F.scaled_dot_product_attention(x, y, y)


class Knowing(Looking):
    attention_kind = "cross"


class Both(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)


def test_a_module_says_its_kind_itself() -> None:
    model = Both(Looking(), Knowing())
    model.parts[0].attention_kind = "encoder"
    assert kinds(attach(model, HARD)) == {"parts.0": "encoder", "parts.1": "cross"}
    # It counts more than where the module is.
    layer = nn.TransformerEncoderLayer(16, 2, 16)
    layer.self_attn.attention_kind = "decoder"
    assert kinds(attach(layer, HARD, kinds="decoder")) == {"self_attn": "decoder"}
    layer.self_attn.attention_kind = "other"
    with pytest.raises(ArgumentError, match=r"attention_kind of self_attn: expected one of 'encoder', .* 'other'"):
        attach(layer, HARD)


def test_an_unknown_kind_is_listed_and_cannot_be_chosen() -> None:
    model = Both(Looking(), Knowing())
    attachment = attach(model, HARD)
    assert kinds(attachment) == {"parts.0": None, "parts.1": "cross"}
    attachment.remove()
    with pytest.raises(AttachError, match=r"kinds: the kind of parts.0 \(Looking\) is unknown; set attention_kind"):
        attach(model, HARD, kinds="cross")
    assert [type(part) for part in model.parts] == [Looking, Knowing]
    # Unless nobody asks for it.
    assert kinds(attach(model, {"parts.0": None, "*": HARD}, kinds="cross")) == {"parts.1": "cross"}


def test_wrong_kinds() -> None:
    for wrong in ("crossed", (), ("encoder", "x"), 3):
        with pytest.raises(ArgumentError, match="kinds: expected one or more of 'encoder', 'decoder', 'cross'"):
            attach(torchs(), HARD, kinds=wrong)
    with pytest.raises(AttachError, match="kinds: no attention site is of kind 'cross'; there is 'encoder'"):
        attach(nn.TransformerEncoderLayer(16, 2), HARD, kinds=("encoder", "cross"))


def test_what_is_out_of_reach_is_reported_only_if_its_kind_was_asked_for() -> None:
    class OwnSoftmax(nn.Module):
        attention_kind = "encoder"

        def forward(self, x):
            return (x @ x.mT).softmax(-1) @ x

    OwnSoftmax.__name__ = "SoftmaxAttention"
    with pytest.warns(ad.errors.AttentionDropWarning, match="could not be reached"):
        assert attach(Both(OwnSoftmax(), Knowing()), HARD).unreached
    assert attach(Both(OwnSoftmax(), Knowing()), HARD, kinds="cross").unreached == ()


def test_only_the_chosen_kind_is_perturbed_and_evaluation_stays() -> None:
    torch.manual_seed(0)
    model = torchs().eval()
    source, target = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    with torch.no_grad():
        plain = model(source, target)
        attachment = attach(model, HARD, kinds="cross")
        assert torch.equal(model(source, target), plain)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        for layer in (*model.encoder.layers, *model.decoder.layers):
            layer.self_attn.dropout = 0.0
        encoder = copy.deepcopy(model.encoder).train()
        assert torch.equal(encoder(source), encoder(source))
        decoder = model.decoder.train()
        assert not torch.equal(decoder(target, source), decoder(target, source))
    assert pickle.loads(pickle.dumps(attachment.sites[0])).kind == "cross"


def test_pickles_of_older_versions() -> None:
    """There, `kind` was what `way` is now, and bounds were a dict."""
    site = Site("x", HARD, "auto", "multihead", "encoder")
    state = site.__getstate__()
    older = {key: value for key, value in state.items() if key != "way"} | {"kind": "multihead"}
    older["driven"] = Driven(HARD, {}, {0: {"p": 0.15}})  # type: ignore[arg-type]
    twin = object.__new__(Site)
    twin.__setstate__(older)
    assert (twin.way, twin.kind) == ("multihead", None)
    assert twin.driven is not None and twin.driven.bounds.of(0, "p") == 0.15


@pytest.mark.parametrize(
    ("name", "words", "both", "kind"),
    [
        ("layer", {"is_causal": False}, False, "encoder"),
        ("layer", {"is_causal": True}, False, "decoder"),
        ("layer", {"is_causal": False, "is_cross_attention": True}, False, "cross"),
        ("layer", {"is_causal": False, "is_decoder": True}, True, "cross"),
        ("layer", {"is_causal": False, "is_decoder": True}, False, "decoder"),
        ("encoder_attn", {"is_causal": False}, True, "cross"),
        ("decoder", {"is_causal": False}, True, "decoder"),
        ("decoder", {"is_causal": False}, False, "encoder"),
        ("layer", {"is_decoder": True}, False, "decoder"),
        ("layer", {"is_decoder": False}, False, "encoder"),
        ("layer", {"is_causal": None}, False, None),
        ("layer", {}, False, None),
    ],
)
def test_what_modules_of_transformers_say(name: str, words: dict, both: bool, kind: str | None) -> None:
    module = nn.Module()
    module.__dict__ |= words
    module.config = types.SimpleNamespace(_attn_implementation_internal="sdpa", is_encoder_decoder=both)
    model = nn.Module()
    model.add_module(name, module)
    assert kinds_of_modules(model).get(module) == kind
