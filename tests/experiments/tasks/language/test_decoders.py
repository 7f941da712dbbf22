"""Decoders of transformers: new ones, pretrained ones, and what attaching changes in them: nothing in evaluation."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import attentiondrop as ad
from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.tasks.interface import forward
from attentiondrop.experiments.tasks.language.decoders import build_decoder
from attentiondrop.experiments.tasks.language.language_settings import DecoderSettings
from attentiondrop.experiments.tasks.registry import find_task
from attentiondrop.torch import attach

from .small import data_of, recipe_of, training

TASK = find_task("language")


@pytest.fixture(scope="module")
def data():
    return data_of(recipe_of())


def model_of(data, rates=None, seed: int = 0, **settings):
    settings = {"dropout": 0.0, "attention_dropout": 0.0} | settings
    return TASK.build_model(DecoderSettings(**settings), data, rates or {}, seed)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model after training with an attached method."""
    found = training(tmp_path_factory.mktemp("trained"), "hard(p=0.3)", "training.epochs=1")
    found.run(lambda epoch: None)
    return found


def test_scores_of_an_attached_model_are_bitwise_those_of_the_unattached(trained) -> None:
    plain = model_of(trained.data, width=16)
    plain.load_state_dict(trained.plain.state_dict())
    assert len(trained.applied.attachment.sites) == 2
    for part in ("train", "validation"):
        found, expected = (TASK.scores(each, trained.data, part, 8, None) for each in (trained.plain, plain))
        assert found == expected
    # ... and an attached model in training mode would give another number.
    inputs = next(trained.data.batches("validation", 8)).inputs
    outputs = [forward(model, inputs).logits for model in (trained.plain.train(), plain.eval())]
    assert not torch.equal(*outputs)


def test_scores_are_those_of_transformers(trained, data) -> None:
    model, tokens = trained.plain.eval(), data.tokens["test"].long()
    with torch.no_grad():
        losses = [  # block by block, as the plain model computes its own loss
            cross_entropy(model(tokens[None, at : at + 16]).logits[0], tokens[at + 1 : at + 17], reduction="sum")
            for at in range(0, len(tokens) - 17, 16)
        ]
        at = 16 * len(losses)
        losses.append(cross_entropy(model(tokens[None, at:-1]).logits[0], tokens[at + 1 :], reduction="sum"))
    loss = float(sum(losses)) / (len(tokens) - 1)
    found = TASK.scores(model, data, "test", 8, None)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    # One byte for each character of this text.
    assert found["bits_per_byte"] == pytest.approx(loss / math.log(2), rel=1e-5)
    longer = dataclasses.replace(data, bytes={"test": 3 * len(tokens)})  # as if each token were three bytes
    third = TASK.scores(model, longer, "test", 8, None)["bits_per_byte"]
    assert third == pytest.approx(found["bits_per_byte"] / 3, rel=1e-5)


@pytest.mark.parametrize("how", [{"do_sample": False}, {"do_sample": True}, {"num_beams": 2, "do_sample": False}])
def test_generation_after_training_is_that_of_the_unattached_model(trained, how: dict) -> None:
    plain = model_of(trained.data, width=16)
    plain.load_state_dict(trained.plain.state_dict())
    start, texts = trained.data.sentence("validation", 6), []
    for model in (trained.plain, plain):
        torch.manual_seed(0)
        texts.append(model.eval().generate(start, max_new_tokens=8, use_cache=True, pad_token_id=0, **how))
    assert torch.equal(*texts) and texts[0].shape == (1, 14)
    assert trained.data.vocabulary.decode(texts[0][0].tolist()).startswith("the ")


def test_weights_depend_on_the_seed_alone(data) -> None:
    before = torch.get_rng_state()
    weights = [
        model_of(data, rates, seed, width=16).state_dict() for rates, seed in (({}, 1), ({"dropout": 0.5}, 1), ({}, 2))
    ]
    assert torch.equal(torch.get_rng_state(), before)
    same, other = (
        [torch.equal(x, y) for x, y in zip(weights[0].values(), w.values(), strict=True)] for w in weights[1:]
    )
    assert all(same) and not all(other)


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "gpt_neox", "falcon"])
def test_decoders_of_several_kinds_train(data, name: str) -> None:
    more = {"llama": {"intermediate_size": 32}, "opt": {"ffn_dim": 32, "word_embed_proj_dim": 16}}
    model = model_of(data, name=name, width=16, arguments=more.get(name, {})).train()
    attachment = attach(model, ad.HardMasking(p=0.5, k=2))
    assert len(attachment.sites) == 2
    batch = next(data.train_batches(seed=0, epoch=0, batch_size=4))
    total, count = TASK.loss(forward(model, batch.inputs), batch.targets, 0.0)
    (total / count).backward()
    assert count == 64 and 0.5 < (total / count).item() / math.log(len(data.vocabulary)) < 2
    # What the data passes to avoid a look through the positions changes nothing.
    model.eval()
    plain = model(batch.inputs["input_ids"]).logits
    assert torch.equal(forward(model, batch.inputs).logits, plain)


def test_rates_reach_the_model(data) -> None:
    def rates(model) -> set[float]:
        return {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}

    assert rates(model_of(data, width=16, dropout=0.2, attention_dropout=0.3)) == {0.2, 0.3}
    # A method replaces the rate of the recipe. The dropout of attention weights is not its business.
    assert rates(model_of(data, {"dropout": 0.5}, width=16, dropout=0.2, attention_dropout=0.3)) == {0.5, 0.3}
    with pytest.raises(
        ArgumentError, match="dropout: expected 0 for llama, whose configuration has none of resid_pdrop"
    ):
        model_of(data, {"dropout": 0.5}, width=16, name="llama")
    with pytest.raises(
        ArgumentError, match="drop_path: expected 0 for gpt2, whose configuration has none of drop_path"
    ):
        model_of(data, {"drop_path": 0.5}, width=16)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gpt2", {}),
        ("gpt_neo", {"attention_types": [[["global"], 2]], "intermediate_size": 32}),
        ("starcoder2", {"intermediate_size": 32}),
    ],
)
def test_dropout_reaches_the_layers_under_every_name(data, name: str, arguments) -> None:
    model = model_of(data, {"dropout": 0.3}, name=name, arguments=arguments).train()
    layers = getattr(model.base_model, "layers" if name == "starcoder2" else "h")
    rates = [
        rate
        for module in layers.modules()
        for rate in (getattr(module, "residual_dropout", None), getattr(module, "p", None))
        if isinstance(rate, float)
    ]
    assert rates.count(0.3) >= 4  # two in each layer


def test_a_rate_that_no_code_of_the_model_reads_is_refused(data) -> None:
    model_of(data, name="mpt", attention_dropout=None)
    with pytest.raises(ArgumentError, match="dropout: expected 0 for mpt, whose configuration has none of embd_pdrop"):
        model_of(data, {"dropout": 0.3}, name="mpt", attention_dropout=None)


def test_a_pretrained_model_comes_from_a_local_folder(data, tmp_path: Path) -> None:
    saved = model_of(data, seed=7, width=16, dropout=0.125)
    saved.save_pretrained(tmp_path)
    found = model_of(data, {"dropout": 0.25}, seed=1, checkpoint=str(tmp_path))
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in saved.state_dict().items())
    assert found.config.resid_pdrop == 0.25 and found.dtype == torch.float32
    kept = model_of(data, checkpoint=str(tmp_path), dropout=None)
    assert kept.config.resid_pdrop == saved.config.resid_pdrop == 0.125
    with pytest.raises(ArgumentError, match=r"data: expected at most the \d+ tokens of .*, received 9999"):
        build_decoder(DecoderSettings(checkpoint=str(tmp_path)), vocabulary=9999, block=16, rates={}, seed=0)
    with pytest.raises(ArgumentError, match=r"data.block: expected at most the 16 positions of .*, received 17"):
        build_decoder(DecoderSettings(checkpoint=str(tmp_path)), vocabulary=9, block=17, rates={}, seed=0)
    with pytest.raises(ArgumentError, match=r"model: .*nowhere cannot be built: "):
        model_of(data, checkpoint=str(tmp_path / "nowhere"))


def test_bad_settings_are_refused(data) -> None:
    with pytest.raises(ArgumentError, match=r"model.width: expected a multiple of the 3 heads, received 16"):
        DecoderSettings(width=16, heads=3)
    with pytest.raises(ArgumentError, match=r"model.name: expected a model type of transformers, such as gpt2 or bert"):
        model_of(data, name="gpt-two")


def test_an_unknown_field_of_the_configuration_is_refused(data, tmp_path: Path) -> None:
    """transformers keeps any field, and the model would have its usual size."""
    wrong = (
        r"model\.arguments: expected fields of LlamaConfig, received 'intermediate_sise'; did you mean 'intermediate_s"
    )
    with pytest.raises(ArgumentError, match=wrong):
        model_of(data, name="llama", width=16, arguments={"intermediate_sise": 32})
    known = {"intermediate_size": 32, "rope_theta": 100.0}  # the second is kept under another name
    model_of(data, name="llama", width=16, arguments=known).save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match=wrong):
        model_of(data, checkpoint=str(tmp_path), arguments={"intermediate_sise": 32})
    assert model_of(data, checkpoint=str(tmp_path), arguments={"attention_bias": False}) is not None


def test_activation_checkpointing_changes_no_gradient(data) -> None:
    batch = next(data.train_batches(seed=0, epoch=0, batch_size=4))
    found = []
    for wish in (False, True):
        model = model_of(data, width=16, dropout=0.2, checkpoint_activations=wish).train()
        attach(model, ad.HardMasking(p=0.5, k=2))
        torch.manual_seed(3)
        TASK.loss(forward(model, batch.inputs), batch.targets, 0.0)[0].backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_copies_of_a_batch_go_on(data) -> None:
    batch = next(data.train_batches(seed=0, epoch=0, batch_size=4))
    twin = copy.deepcopy(batch)
    model = model_of(data, width=16).eval()
    assert torch.equal(forward(model, twin.inputs).logits, forward(model, batch.inputs).logits)
    halves = TASK.split(batch, 2)
    assert [half.inputs["input_ids"].shape for half in halves] == [(2, 16)] * 2
    assert torch.equal(torch.cat([half.targets for half in halves]), batch.targets)


@pytest.mark.parametrize("name", ["bert", "electra"])
def test_an_encoder_is_no_language_model(name: str, data) -> None:
    """Its tokens see later ones, unless it is told to be a decoder."""
    with pytest.raises(ArgumentError, match=r"model\.name: expected a model whose tokens see no later ones"):
        model_of(data, name=name, layers=1, heads=2, width=16)
    model_of(data, name=name, layers=1, heads=2, width=16, arguments={"is_decoder": True})


@pytest.mark.parametrize("name", ["mistral", "qwen2", "llama"])
def test_new_models_with_grouped_heads_have_a_key_head_for_each(name: str, data) -> None:
    assert model_of(data, name=name, layers=1, heads=2, width=16).config.num_key_value_heads == 2


SMALL = {"intermediate_size": 32, "head_dim": 8}


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_models_without_sdpa_train_and_predict_as_transformers_does(name: str, data) -> None:
    """Gemma 2 caps its logits, and GPT-OSS has sinks: transformers has only eager attention for them."""
    more = {"gemma2": SMALL, "gpt_oss": SMALL | {"num_local_experts": 2, "num_experts_per_tok": 1}}
    model = model_of(data, name=name, width=16, arguments=more[name], attention_dropout=None, dropout=None)
    batch = next(data.train_batches(seed=0, epoch=0, batch_size=4))
    plain = forward(model.eval(), batch.inputs).logits
    attachment = attach(model.train(), ad.DropKey(p=0.5))
    assert len(attachment.sites) == 2
    perturbed = forward(model, batch.inputs).logits
    assert not torch.allclose(perturbed, plain, rtol=1e-4, atol=1e-6)
    TASK.loss(forward(model, batch.inputs), batch.targets, 0.0)[0].backward()
    assert torch.equal(forward(model.eval(), batch.inputs).logits, plain)
    attachment.remove()
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(batch.inputs["input_ids"]).logits, plain, rtol=1e-4, atol=1e-5)


def test_a_model_that_computes_its_attention_itself_trains_without_a_method(data) -> None:
    model = model_of(data, name="bloom", width=16, attention_dropout=None).train()
    batch = next(data.train_batches(seed=0, epoch=0, batch_size=4))
    TASK.loss(forward(model, batch.inputs), batch.targets, 0.0)[0].backward()
    with pytest.raises(ad.AttachError, match="found no attention in BloomForCausalLM that can be regularised"):
        attach(model, ad.HardMasking())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "roberta",
            r"model: roberta cannot run on 8 tokens: TypeError: .* \(its pad_token_id is None, since this task never pads",
        ),
        ("minimax", r"model\.name: expected a model of attention layers alone, received 'minimax', which cannot be tr"),
    ],
)
def test_models_that_cannot_run_are_refused_when_they_are_built(name: str, message: str, data) -> None:
    more = {"minimax": SMALL | {"num_local_experts": 2, "num_experts_per_tok": 1}, "roberta": {"is_decoder": True}}
    with pytest.raises(ArgumentError, match=message):
        model_of(data, name=name, width=16, arguments=more[name], attention_dropout=None, dropout=None)
