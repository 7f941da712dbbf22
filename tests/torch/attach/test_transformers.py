"""transformers: encoders, decoders, cross-attention, grouped queries, soft caps, position biases; tiny random models."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from checks import check_compiled, check_model, randomise
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop.torch import attach

transformers = pytest.importorskip("transformers")

from small_transformers import MODELS, NO_DROPOUT, SIZES, build, checkpointing, config, runner, text, tokens  # noqa: E402 - they need transformers


@pytest.mark.parametrize("key", MODELS)
@pytest.mark.parametrize("spec", [ad.HardMasking(p=0.4, k=3), ad.BlurSmoothing(sigma_max=1.5)], ids=str)
def test_promises(key: str, spec: ad.Spec) -> None:
    model = build(key)
    # T5 makes its position biases require gradients under checkpointing only, so hard masking then runs eager, and SDPA
    # takes its math kernel.
    check_model(model, runner(key), MODELS[key].sites, checkpointing, spec, same_kernels=key != "t5")


@pytest.mark.parametrize("key", ["bert", "gpt2", "llama", "t5"])
def test_promises_with_eager_attention(key: str) -> None:
    """A model loaded with eager attention stays eager in evaluation and hands out its weights in training."""
    model = build(key, attn_implementation="eager")
    check_model(model, runner(key), MODELS[key].sites, checkpointing)
    if key == "bert":
        attach(model, ad.HardMasking(p=0.4, k=8, fill="-inf"))
        weights = model.train()(**text(), output_attentions=True).attentions
        assert len(weights) == 2 and (weights[0][0] == 0).any()


def test_weights_and_fused_do_not_go_together() -> None:
    model = build("bert", attn_implementation="eager").train()
    attach(model, ad.HardMasking(p=0.4, k=8), backend="fused")
    model(**text())
    with pytest.raises(ad.BackendError, match=r"layer.0.*weights are asked for.*Pass output_attentions=False"):
        model(**text(), output_attentions=True)
    model.config.output_attentions = True
    with pytest.raises(ad.BackendError, match="weights are asked for"):
        model(**text())
    assert len(model(**text(), output_attentions=False)) == 2


def test_also_in_a_model_that_does_not_tell_its_attention() -> None:
    model = build("gpt2", attn_implementation="eager").train()
    attach(model, ad.HardMasking(p=0.4, k=8), backend="fused")
    model(**text(), output_hidden_states=True)
    with pytest.raises(ad.BackendError, match="weights are asked for"):
        model(**text(), output_attentions=True)


#: Compiled in every run. Tracing the others shows more of the same.
COMPILED = ("bert",)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "key", [key if key in COMPILED else pytest.param(key, marks=pytest.mark.slow) for key in MODELS]
)
def test_compiled_equals_eager(key: str) -> None:
    model = build(key)
    if key == "bert":
        del model.encoder.layer[1:]  # one layer shows it, in half the time
    for parameter in model.parameters():
        parameter.requires_grad_(False)  # the forward decides; gradients of compiled calls are tested on `attention`
    # Bart and Whisper decide about LayerDrop in Python in training, attached or not: one graph break each.
    check_compiled(model, runner(key), "aot_eager", fullgraph=key not in ("bart", "whisper"))


SPECS = ["hard(p=0.4,k=3)", "hard(p=0.4,k=3,fill=-inf)", "blur(sigma_max=1.5)", "blur(sigma_max=1.5,edges=renormalize)"]
SPECS += ["dropkey(p=0.3)", "noise(sigma=0.5)", "attndropout(p=0.3)", "drophead(p=0.3)"]


@pytest.mark.no_cover
@pytest.mark.parametrize("key", [key for key, model in MODELS.items() if model.padded])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_padding_is_masked_in_training(key: str, implementation: str) -> None:
    """With fixed draws, outputs at valid positions do not depend on what stands in padded ones."""
    if key == "gemma2" and implementation == "sdpa":
        implementation = "eager"  # SDPA has no soft cap, and Gemma2 chooses eager by itself
    model = build(key, attn_implementation=implementation).train()
    entry = MODELS[key]
    inputs = entry.inputs()
    other = copy.deepcopy(inputs)
    for ids, mask in entry.padded:
        other[ids] = torch.where(inputs[mask].bool(), inputs[ids], 49)
        assert not torch.equal(other[ids], inputs[ids])
    valid = inputs[dict(entry.padded)[entry.positions]].bool()
    for spec in SPECS:
        with attach(model, spec):
            outputs = []
            for data in (inputs, other):
                torch.manual_seed(1)
                outputs.append(entry.pick(model(**data))[valid])
            assert torch.equal(*outputs), spec


def test_no_information_from_the_future_in_a_decoder() -> None:
    for key in ("gpt2", "llama", "gemma2", "clip text"):
        model = build(key).train()
        ids = tokens()
        embeddings = model.get_input_embeddings()
        vectors: list[Tensor] = []

        def keep(module: nn.Module, args: Any, output: Tensor, vectors: list[Tensor] = vectors) -> Tensor:
            vectors.append(output.detach().requires_grad_())
            return vectors[-1]

        embeddings.register_forward_hook(keep)
        for spec in SPECS:
            with attach(model, spec):
                output = model(input_ids=ids)[0]
                (grad,) = torch.autograd.grad(output[:, 3].sin().sum(), [vectors[-1]])
                assert grad[:, :4].any() and not grad[:, 4:].any(), (key, spec)


def test_models_that_share_a_configuration_stay_apart() -> None:
    shared = config("BertConfig", **SIZES, **NO_DROPOUT)
    first, second = transformers.BertModel(shared), transformers.BertModel(shared)
    attach(first, "hard(p=0.4,k=3)")
    first.train(), second.train()
    assert shared._attn_implementation == "sdpa"
    assert not torch.equal(first(**text())[0], first(**text())[0])
    assert torch.equal(second(**text())[0], second(**text())[0])


def test_sinks_are_honoured() -> None:
    """gpt-oss has a sink logit for each head: at rate 0 its training forward is its own."""
    fields = {
        **SIZES,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "sliding_window": 3,
    }
    model = randomise(transformers.GptOssModel(config("GptOssConfig", **fields)))
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.sinks.normal_()
    model.train()
    expected = model(**text())[0]
    with attach(model, "hard(p=0.0)"):
        torch.testing.assert_close(model(**text())[0], expected)
    with attach(model, "hard(p=0.4,k=3)"):
        assert not torch.allclose(model(**text())[0], expected)


@pytest.mark.parametrize("key", MODELS)
def test_rate_zero_changes_nothing_in_training(key: str) -> None:
    model, entry = build(key).train(), MODELS[key]
    inputs = entry.inputs()
    masks = dict(entry.padded)
    # A padded position may see nothing: then the library gives zeros, and eager attention the mean of what is hidden.
    where = inputs[masks[entry.positions]].bool() if masks else ...
    expected = entry.pick(model(**inputs))[where]
    for spec in ("hard(p=0.0)", "blur(sigma_max=0.0)", "noise(sigma=0.0)"):
        with attach(model, spec):
            torch.testing.assert_close(entry.pick(model(**inputs))[where], expected, rtol=2e-5, atol=2e-5)


def test_what_cannot_be_reached() -> None:
    deberta = transformers.DebertaV2Model(config("DebertaV2Config", **SIZES))
    with pytest.raises(ad.AttachError, match="2 x DisentangledSelfAttention  it computes its softmax itself"):
        attach(deberta, "hard")
    bert = build("bert")
    bert.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ad.AttachError, match="attn_implementation='flash_attention_2' passes no full mask"):
        attach(bert, "hard")


def test_attention_over_channels_is_left_out() -> None:
    from transformers.models.florence2.modeling_florence2 import Florence2VisionBackbone

    sizes = {"depths": (1,), "embed_dim": (16,), "num_heads": (2,), "num_groups": (2,), "projection_dim": 16}
    patches = {"patch_size": (7,), "patch_stride": (4,), "patch_padding": (3,), "patch_prenorm": (False,)}
    model = Florence2VisionBackbone(config("Florence2VisionConfig", **sizes, **patches))
    with pytest.warns(UserWarning, match="it attends over channels, not over tokens"):
        attachment = attach(model, "hard")
    assert [site.name.rpartition(".")[2] for site in attachment.sites] == ["window_attn"]


def test_the_registered_name_without_a_site_is_sdpa() -> None:
    import attentiondrop.integrations.transformers  # noqa: F401  registers the name

    model = build("bert").eval()
    expected = model(**text())[0]
    model.set_attn_implementation("attentiondrop")
    torch.testing.assert_close(model(**text())[0], expected)
    attach(model, "hard(p=0.4,k=3)")
    torch.testing.assert_close(model(**text())[0], expected)
    assert not torch.allclose(model.train()(**text())[0], expected)


def test_save_pretrained_knows_nothing_of_it(tmp_path: Any) -> None:
    model = build("bert")
    attach(model, "hard(p=0.4,k=3)")
    model.save_pretrained(tmp_path)
    assert "attentiondrop" not in (tmp_path / "config.json").read_text()
    loaded = transformers.BertModel.from_pretrained(tmp_path)
    assert torch.equal(loaded.eval()(**text())[0], model.eval()(**text())[0])
