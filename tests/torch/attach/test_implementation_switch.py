"""transformers: the attention implementation is set after `attach`. Training follows it, or refuses."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from checks import gradients, randomise
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop.torch import attach

transformers = pytest.importorskip("transformers")

HARD = "hard(p=0.4,k=3)"
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Model", "GPT2Config", {**GPT2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "llama": ("LlamaModel", "LlamaConfig", {**SIZES, "num_key_value_heads": 2}),
    "bert as decoder": ("BertModel", "BertConfig", {**SIZES, **NO_DROPOUT, "is_decoder": True}),
    # Rows see three tokens: what they see of earlier ones must not change either.
    "mistral": ("MistralModel", "MistralConfig", {**SIZES, "num_key_value_heads": 2, "sliding_window": 3}),
}


def build(key: str, implementation: str) -> Any:
    model, configuration, fields = MODELS[key]
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, configuration)(**fields, **special, attn_implementation=implementation)
    torch.manual_seed(0)
    return randomise(getattr(transformers, model)(config), 1.5).train()


def tokens() -> Tensor:
    return torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(0))


def run(model: nn.Module, ids: Tensor | None = None) -> Tensor:
    torch.manual_seed(1)
    output: Tensor = model(input_ids=tokens() if ids is None else ids, use_cache=False)[0]
    return output


def on_the_model(model: Any, implementation: str) -> None:
    model.set_attn_implementation(implementation)


def on_the_config(model: Any, implementation: str) -> None:
    model.config._attn_implementation = implementation


def check_nothing_leaks(model: nn.Module) -> None:
    """The last token changes the last output, and no earlier one."""
    other = tokens()
    other[:, -1] = 3 + (other[:, -1] + 1) % 47
    have, want = run(model, other), run(model)
    assert torch.equal(have[:, :-1], want[:, :-1]) and not torch.equal(have[:, -1], want[:, -1])


@pytest.mark.parametrize("key", MODELS)
@pytest.mark.parametrize("switch", [on_the_model, on_the_config])
@pytest.mark.parametrize("first, then", [("eager", "sdpa"), ("sdpa", "eager")])
def test_training_follows(key: str, switch: Callable[..., None], first: str, then: str) -> None:
    """As a model that was loaded that way: with draws, and without an effect as the plain model itself."""
    model = build(key, first)
    attachment = attach(model, HARD)
    run(model)
    for implementation in (then, first):
        switch(model, implementation)
        loaded = build(key, implementation)
        expected = run(loaded)
        attach(loaded, HARD)
        assert torch.equal(run(model), run(loaded))
        check_nothing_leaks(model)
        attachment.update("hard(p=0.0)")
        torch.testing.assert_close(run(model), expected, rtol=2e-5, atol=2e-5)
        attachment.update(HARD)


@pytest.mark.parametrize("key", MODELS)
@pytest.mark.parametrize("implementation", ["flash_attention_2", "flex_attention"])
def test_implementations_without_a_full_mask_are_refused_in_training(key: str, implementation: str) -> None:
    model = build(key, "sdpa")
    attachment = attach(model, HARD)
    site = attachment.sites[0]
    attention = model.get_submodule(site.name)
    on_the_config(model, implementation)
    # A mask that is given keeps transformers from compiling one of its own for flex attention.
    given = {"attention_mask": torch.ones(2, 1, 8, 8, dtype=torch.bool)} if implementation == "flex_attention" else {}
    cause = f"{site.name} \\({type(attention).__name__}\\): attn_implementation='{implementation}' passes no full mask"
    with pytest.raises(ad.AttachError, match=f"{cause}.*set_attn_implementation\\('sdpa'\\) on the model"):
        model(input_ids=tokens(), use_cache=False, **given)
    assert attention.eval().config is model.config, "evaluation sees another configuration"
    on_the_config(model.train(), "sdpa")
    check_nothing_leaks(model)


def test_on_a_sub_configuration() -> None:
    """CLIP has a configuration for its text and one for its images."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.CLIPConfig(
        text_config={**sizes, "vocab_size": 50, "max_position_embeddings": 32, "eos_token_id": 2},
        vision_config={**sizes, "image_size": 16, "patch_size": 8},
        projection_dim=16,
        attn_implementation="eager",
    )
    model = randomise(transformers.CLIPModel(config), 1.5).train()
    attach(model, HARD)
    text = model.text_model
    model.config.text_config._attn_implementation = "sdpa"
    other = tokens()
    other[:, -1] = 3 + (other[:, -1] + 1) % 47
    outputs = []
    for ids in (tokens(), other):
        torch.manual_seed(1)
        outputs.append(text(input_ids=ids, output_attentions=True).last_hidden_state)
    assert torch.equal(outputs[0][:, :-1], outputs[1][:, :-1])
    model.config.text_config._attn_implementation = "flash_attention_2"
    with pytest.raises(ad.AttachError, match=r"text_model\.encoder\.layers\.0\.self_attn \(CLIPAttention\)"):
        text(input_ids=tokens())
    # The images still attend as they did.
    pixels = torch.randn(2, 3, 16, 16)
    assert model.vision_model(pixel_values=pixels)[0].isfinite().all()
    model.set_attn_implementation({"text_config": "sdpa"})
    assert text(input_ids=tokens())[0].isfinite().all()


def test_other_values_of_the_configuration_are_read_at_each_call() -> None:
    """Not only the implementation: the view in training is no copy of the configuration."""
    model = build("llama", "sdpa")
    attach(model, HARD)
    attention = model.layers[0].self_attn
    assert attention.config is not model.config and isinstance(attention.config, type(model.config))
    model.config.pretraining_tp = 7
    assert attention.config.pretraining_tp == 7
    attention.config.pretraining_tp = 8
    assert model.config.pretraining_tp == 8
    assert model.config._attn_implementation == "sdpa"
    assert "attentiondrop" not in str(model.config.to_dict())


def copied(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


def pickled(model: nn.Module) -> nn.Module:
    loaded: nn.Module = pickle.loads(pickle.dumps(model))
    return loaded


@pytest.mark.parametrize("clone", [copied, pickled])
def test_copies_follow_their_own_configuration(clone: Callable[[nn.Module], nn.Module]) -> None:
    model = build("gpt2", "eager")
    attach(model, HARD)
    before = run(model)
    twin = clone(model)
    on_the_model(twin, "sdpa")
    assert model.config._attn_implementation == "eager" and twin.config._attn_implementation == "sdpa"
    check_nothing_leaks(twin)
    assert torch.equal(run(model), before)
    loaded = build("gpt2", "sdpa")
    attach(loaded, HARD)
    assert torch.equal(run(twin), run(loaded))


def test_models_that_share_a_configuration_switch_together() -> None:
    first = build("llama", "eager")
    second = copy.deepcopy(first)
    for module in second.modules():
        if "config" in vars(module):
            module.config = first.config
    attach(first, HARD)
    on_the_config(first, "sdpa")
    check_nothing_leaks(first)
    plain = run(second)
    assert torch.equal(run(second), plain)
    attach(second, HARD)
    assert torch.equal(run(first), run(second))


def test_under_activation_checkpointing() -> None:
    model = build("gpt2", "eager")
    attach(model, HARD)
    on_the_model(model, "sdpa")
    output, grads = gradients(model, run, 1)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again, recomputed = gradients(model, run, 1)
    assert torch.equal(again, output) and all(torch.equal(recomputed[name], grads[name]) for name in grads)


@pytest.mark.no_cover
@pytest.mark.parametrize("key", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_compiled(key: str) -> None:
    """A compiled model notices the switch, and refuses as an eager one does."""
    torch._dynamo.reset()
    model = build(key, "eager").requires_grad_(False)
    attach(model, HARD)
    layers = model.h if key == "gpt2" else model.layers
    del layers[1:]  # one layer shows it, in half the time
    compiled = torch.compile(lambda ids: model(input_ids=ids, use_cache=False)[0], backend="aot_eager", fullgraph=True)
    for implementation in ("eager", "sdpa"):
        on_the_config(model, implementation)
        expected = run(model)
        torch.manual_seed(1)
        torch.testing.assert_close(compiled(tokens()), expected, rtol=2e-5, atol=2e-5)
    on_the_config(model, "flash_attention_2")
    with pytest.raises(Exception, match="passes no full mask"):
        compiled(tokens())


def test_a_model_that_calls_sdpa_itself_says_how_to_switch_to_it() -> None:
    """Falcon has its attention in one module with two branches, and no function that could be exchanged."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_kv_heads": 2}
    config = transformers.FalconConfig(**sizes, bos_token_id=1, eos_token_id=2)
    words = torch.arange(8)[None]

    def attached(implementation: str) -> Any:
        model = transformers.FalconForCausalLM._from_config(config, attn_implementation=implementation).train()
        attach(model, ad.DropKey(p=0.5))
        return model

    with pytest.raises(
        ad.AttachError,
        match=r"so nothing was perturbed: load the model with attn_implementation='sdpa' instead of 'eag",
    ):
        attached("eager")(words)
    attached("sdpa")(words)
    with pytest.raises(ad.AttachError, match=r"do not ask for attention weights \(output_attentions=True\), or leave"):
        attached("sdpa")(words, output_attentions=True)
