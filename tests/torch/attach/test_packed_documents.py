"""Several documents in one row: nothing crosses from one to another, or the batch is refused."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
import torch
from every_regulariser import examples
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop.torch import attach
from attentiondrop.torch.attach import packed_documents

transformers = pytest.importorskip("transformers")
transformers_masks = import_module("attentiondrop.torch.attach.transformers_masks")

#: Documents of 5, 1 and 6 tokens.
LENGTHS = (5, 1, 6)
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS])[None]
SIZES = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}


def model_of(name: str, implementation: str = "sdpa") -> nn.Module:
    more = {"intermediate_size": 32} if name == "llama" else {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.AutoConfig.for_model(name, **SIZES, **more, max_position_embeddings=32, pad_token_id=None)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).train()


def tokens(seed: int) -> Tensor:
    return torch.randint(0, 49, POSITIONS.shape, generator=torch.Generator().manual_seed(seed))


def outputs(model: nn.Module, words: Tensor, **more) -> list[Tensor]:
    """The logits of each document, always with the same draws."""
    torch.manual_seed(1)
    found = model(words, **{"position_ids": POSITIONS, "use_cache": False} | more).logits
    return list(found.split(LENGTHS, dim=1))


@pytest.mark.parametrize("spec", examples(), ids=str)
def test_what_other_documents_say_changes_nothing(spec) -> None:
    model = model_of("llama")
    attach(model, spec)
    for changed in range(3):
        words = [tokens(0), tokens(0)]
        start = sum(LENGTHS[:changed])
        words[1][:, start : start + LENGTHS[changed]] += 1
        one, other = (outputs(model, each) for each in words)
        same = [torch.equal(*pair) for pair in zip(one, other, strict=True)]
        assert same == [index != changed for index in range(3)], (spec, changed)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_spec_that_does_nothing_gives_what_separate_documents_give(name: str, implementation: str) -> None:
    model, words = model_of(name, implementation), tokens(0)
    attachment = attach(model, ad.HardMasking(p=0.0, k=1))
    packed = outputs(model, words)
    attachment.remove()
    alone = [model(part, use_cache=False).logits for part in words.split(LENGTHS, dim=1)]
    for one, other in zip(packed, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_documents_without_a_mask_are_refused(name: str) -> None:
    model = model_of(name)
    attach(model, ad.HardMasking(p=0.5, k=2))
    with pytest.raises(
        ad.AttentionDropError,
        match=r"attn \(\w+\): position_ids pack several documents into one row, and no mask separates them: pass use_c",
    ):
        outputs(model, tokens(0), use_cache=True)
    # A mask of the user's own is enough, whatever the cache does.
    document = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS))
    mask = (document[:, None] == document) & torch.ones(12, 12, dtype=torch.bool).tril()
    masked = outputs(model, tokens(0), use_cache=True, attention_mask=mask[None, None])
    for one, other in zip(masked, outputs(model, tokens(0)), strict=True):
        assert torch.equal(one, other)
    # Evaluation is the model's own affair.
    model.eval()
    outputs(model, tokens(0), use_cache=True)


def test_every_batch_on_a_cpu_is_refused_with_a_reason() -> None:
    model, whole = model_of("llama"), torch.arange(12)[None]
    attach(model, ad.HardMasking(p=0.5, k=2))
    for _ in range(3):
        model(tokens(0), position_ids=whole, use_cache=True)
    with pytest.raises(ad.AttentionDropError, match="position_ids pack several documents"):
        outputs(model, tokens(0), use_cache=True)


@pytest.mark.parametrize("lengths", [(1, 11), (11, 1)])
def test_a_document_of_one_token_is_one(lengths: tuple[int, int]) -> None:
    model = model_of("llama")
    attach(model, ad.HardMasking(p=0.5, k=2))
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    with pytest.raises(ad.AttentionDropError, match="position_ids pack several documents"):
        model(tokens(0), position_ids=positions, use_cache=True)


def readers_of_booleans(monkeypatch) -> list[str]:
    """The modules that read a tensor as a boolean from now on, once for each time."""
    readers = []

    def noting(x: Tensor, real=Tensor.__bool__) -> bool:
        readers.append(sys._getframe(1).f_globals["__name__"])
        return real(x)

    monkeypatch.setattr(Tensor, "__bool__", noting)
    return readers


def test_later_batches_on_a_device_are_refused_without_waiting(monkeypatch) -> None:
    """Only the first two calls of a site read the positions; then the device itself asserts, here the CPU."""
    monkeypatch.setattr(packed_documents, "_takes_waiting", lambda x: True)
    model, whole = model_of("llama"), torch.arange(12)[None]
    attach(model, ad.HardMasking(p=0.5, k=2))
    with pytest.raises(ad.AttentionDropError, match="position_ids pack several documents"):
        outputs(model, tokens(0), use_cache=True)
    readers = readers_of_booleans(monkeypatch)
    for _ in range(3):
        model(tokens(0), position_ids=whole, use_cache=True)
    # The first layer looks for all: once in the batch that was refused, once more here, then no longer.
    assert readers.count(packed_documents.__name__) == 1
    with pytest.raises(RuntimeError, match="position_ids pack several documents into one row") as found:
        outputs(model, tokens(0), use_cache=True)
    assert not isinstance(found.value, ad.AttentionDropError)


def test_later_masks_on_a_device_are_refused_without_waiting(monkeypatch) -> None:
    monkeypatch.setattr(packed_documents, "_takes_waiting", lambda x: True)
    model = model_of("llama")
    attach(model, ad.HardMasking(p=0.5, k=2))
    readers = readers_of_booleans(monkeypatch)
    padding = (torch.arange(12) < 10).long()[None]
    for _ in range(4):
        model(tokens(0), position_ids=torch.arange(12)[None], attention_mask=padding, use_cache=True)
    assert readers.count(packed_documents.__name__) == 2, "only the first layer, and only in two steps"
    with pytest.raises(RuntimeError, match="position_ids pack several documents into one row") as found:
        outputs(model, tokens(0), use_cache=True, attention_mask=padding)
    assert not isinstance(found.value, ad.AttentionDropError)


#: Arguments that leave packed documents unseparated: transformers looks at positions only without mask and cache.
UNSEPARATED = {
    "padding": {"attention_mask": (torch.arange(12) < torch.tensor([[12], [10]])).long()},
    "padding and a cache": {
        "attention_mask": (torch.arange(12) < torch.tensor([[12], [10]])).long(),
        "use_cache": True,
    },
    "padding between": {"attention_mask": (torch.arange(12) // 2 != 2).long().expand(2, 12)},
    "causal": {"attention_mask": torch.ones(12, 12, dtype=torch.bool).tril().expand(2, 1, 12, 12)},
    "additive": {"attention_mask": torch.full((12, 12), -torch.inf).triu(1).expand(2, 1, 12, 12), "use_cache": True},
    "one row": {"position_ids": POSITIONS, "use_cache": True},
    "boundaries": {
        "attention_mask": (torch.arange(12) < torch.tensor([[12], [10]])).long(),
        "position_ids": None,
        "cu_seq_lens_q": torch.tensor([0, 5, 6, 12, 24]),
    },
}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("case", UNSEPARATED)
def test_a_mask_that_does_not_separate_documents_is_not_enough(case: str, implementation: str) -> None:
    model = model_of("llama", implementation)
    attach(model, ad.HardMasking(p=0.5, k=2))
    given = {"position_ids": POSITIONS.expand(2, 12), "use_cache": False} | UNSEPARATED[case]
    with pytest.raises(
        ad.AttentionDropError, match=r"pack\w* \w+ documents into one row, and no mask separates them: pa"
    ):
        model(tokens(0).expand(2, 12), **given)
    model.eval()(tokens(0).expand(2, 12), **given)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("filled", [0, 1])
def test_positions_of_padding_are_no_documents(side: str, filled: int, implementation: str) -> None:
    """`generate` and many collators give all padding the position 0, or 1."""
    model = model_of("llama", implementation)
    attach(model, ad.HardMasking(p=0.5, k=2))
    mask = (torch.arange(12) < torch.tensor([[12], [8]])).long()
    mask = mask.flip(1) if side == "left" else mask
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, filled)
    model(tokens(0).expand(2, 12), position_ids=positions, attention_mask=mask)


def test_documents_may_share_a_beginning() -> None:
    """Two answers to one question: a mask of the user's own shows both the question, and neither the other."""
    model = model_of("llama")
    attach(model, ad.HardMasking(p=0.5, k=2))
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]])
    mask = torch.ones(12, 12, dtype=torch.bool).tril()
    mask[8:, 4:8] = False
    model(tokens(0), position_ids=positions, attention_mask=mask[None, None], use_cache=False)


def test_windows_in_blocks_separate_documents_only_without_a_cache(monkeypatch) -> None:
    monkeypatch.setattr(transformers_masks, "LONG", 8)
    monkeypatch.setattr(transformers_masks, "SIZE", 4)
    config = transformers.MistralConfig(
        **SIZES, intermediate_size=16, num_key_value_heads=1, sliding_window=3, attn_implementation="attentiondrop"
    )
    model = transformers.MistralForCausalLM(config).train()
    attach(model, ad.HardMasking(p=0.5, k=2))
    outputs(model, tokens(0))
    with pytest.raises(ad.AttentionDropError, match="position_ids pack several documents"):
        outputs(model, tokens(0), use_cache=True)
    padding = (torch.arange(12) < 10).long()[None]
    with pytest.raises(ad.AttentionDropError, match="position_ids pack several documents"):
        outputs(model, tokens(0), attention_mask=padding)
    model(tokens(0), attention_mask=padding)


def test_boundaries_for_flash_attention_are_refused_without_a_mask() -> None:
    model = model_of("llama")
    attach(model, ad.BlurSmoothing())
    bounds = torch.tensor([0, 5, 6, 12], dtype=torch.int32)
    with pytest.raises(ad.AttentionDropError, match="cu_seq_lens_q packs 3 documents into one row, and no mask separa"):
        model(tokens(0), use_cache=False, cu_seq_lens_q=bounds, cu_seq_lens_k=bounds)
    # Two documents in one row are too many, and two rows of one document each are not.
    two = {name: bounds[[0, 1, -1]] for name in ("cu_seq_lens_q", "cu_seq_lens_k")}
    with pytest.raises(ad.AttentionDropError, match="cu_seq_lens_q packs 2 documents"):
        model(tokens(0), use_cache=False, **two)
    model(tokens(0).expand(2, -1), use_cache=False, **two)
    # With positions there is a mask, and one document needs none.
    outputs(model, tokens(0), cu_seq_lens_q=bounds, cu_seq_lens_k=bounds)
    model(tokens(0), use_cache=False, cu_seq_lens_q=bounds[[0, -1]], cu_seq_lens_k=bounds[[0, -1]])


@pytest.mark.parametrize(
    "positions", [torch.arange(12)[None], torch.arange(12)[None] * 2, torch.arange(12).expand(2, 12) + 7]
)
def test_one_document_is_no_packing(positions: Tensor) -> None:
    """Also where positions skip some numbers, or do not begin with 0."""
    model = model_of("llama")
    attach(model, ad.HardMasking(p=0.5, k=2))
    model(tokens(0).expand(len(positions), -1), position_ids=positions, use_cache=True)


def test_compiled_code_does_not_look_at_positions() -> None:
    """Looking would split its graph."""
    model = model_of("llama")
    attach(model, ad.HardMasking(p=0.5, k=2), backend="eager")
    compiled = torch.compile(model.model.layers[0].self_attn, backend="eager", fullgraph=True)
    turns = torch.ones(1, 12, 8), torch.zeros(1, 12, 8)
    found, _ = compiled(
        torch.randn(1, 12, 16), position_embeddings=turns, attention_mask=None, position_ids=torch.arange(12)[None]
    )
    assert found.isfinite().all()


def test_later_calls_leave_it_to_a_device(monkeypatch) -> None:
    """An accelerator is looked at twice, then it stops the program itself: with a message that it takes."""
    told = []
    monkeypatch.setattr(packed_documents, "_takes_waiting", lambda x: True)
    monkeypatch.setattr(torch, "_assert_async", lambda condition, message: told.append(message))
    model, words = model_of("gpt2"), tokens(0)
    attach(model, ad.HardMasking())
    for _ in range(4):
        model(words, position_ids=torch.arange(words.shape[1])[None])
    assert told
    assert all("position_ids pack several documents" in each and len(each.encode()) < 255 for each in told)


#: [CLS] a cat . a dog . [SEP], as Grounding DINO reads it: a full stop closes its phrase, and its position is 0.
PHRASES = torch.tensor([0, 1, 1, 1, 2, 2, 2, 3])
PHRASE_POSITIONS = torch.tensor([[0, 0, 1, 0, 0, 1, 0, 0]])


def bert_on_phrases(phrases: Tensor) -> Tensor:
    config = transformers.BertConfig(**SIZES, intermediate_size=32)
    model = transformers.BertModel(config, add_pooling_layer=False).train()
    attach(model, "hard(p=0.4,k=3)")
    mask = (phrases[:, None] == phrases)[None, None]
    return model(tokens(0)[:, :8], attention_mask=mask, position_ids=PHRASE_POSITIONS)[0]


def test_a_token_that_closes_a_phrase_is_no_document() -> None:
    assert bert_on_phrases(PHRASES).isfinite().all()


@pytest.mark.parametrize("joined", [(2, 3), (0, 1), (1, 2)])
def test_phrases_that_see_each_other_are_refused(joined: tuple[int, int]) -> None:
    with pytest.raises(ad.AttachError, match="position_ids pack several documents into one row"):
        bert_on_phrases(torch.where(joined[1] == PHRASES, joined[0], PHRASES))
