"""Models of transformers that select keys for each row: training must attend to what evaluation attends to."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attentiondrop.errors import AttachError
from attentiondrop.torch import attach
from attentiondrop.torch.attach.selected_keys import with_selection
from attentiondrop.torch.call.blocks import Blocks

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 50}
SIZES |= {"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}
LATENT |= {"v_head_dim": 8, "index_topk": 4, "index_n_heads": 2, "index_head_dim": 16, "moe_intermediate_size": 16}
LATENT |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2}
BLOCKS = {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
BLOCKS |= {"index_n_heads": 2, "index_head_dim": 8, "index_block_size": 2, "index_topk_blocks": 2}
BLOCKS |= {"layer_types": ["full_attention", "minimax_m3_sparse"]}
#: Name of the model -> what its configuration needs.
MODELS = {"deepseek_v32": LATENT, "glm_moe_dsa": LATENT, "axk2": LATENT, "minimax_m3_vl_text": BLOCKS}


def build(name: str, implementation: str) -> Any:
    try:
        config = transformers.AutoConfig.for_model(name, **SIZES, **MODELS[name])
    except ValueError:
        pytest.skip(f"this release of transformers has no {name}")
    torch.manual_seed(0)
    if name != "minimax_m3_vl_text":
        model = transformers.AutoModel.from_config(config)
    else:
        from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLTextModel

        model = MiniMaxM3VLTextModel(config)
    model.set_attn_implementation(implementation)
    return model.train()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager", "attentiondrop"])
def test_keys_that_were_not_selected_stay_hidden(name: str, implementation: str) -> None:
    model, ids = build(name, implementation), torch.randint(3, 50, (2, 12), generator=torch.Generator().manual_seed(0))
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        plain = model(input_ids=ids, use_cache=False).last_hidden_state
        model.set_attn_implementation(implementation)
        unattached = model(input_ids=ids, use_cache=False).last_hidden_state
        with attach(model, "hard(p=0.0,k=2)"):
            attached = model(input_ids=ids, use_cache=False).last_hidden_state
        for layer in model.layers:
            if (indexer := getattr(layer.self_attn, "indexer", None)) is not None:
                indexer.index_topk = indexer.topk_blocks = 64
        dense = model(input_ids=ids, use_cache=False).last_hidden_state
    torch.testing.assert_close(unattached, plain, atol=1e-5, rtol=0)
    torch.testing.assert_close(attached, plain, atol=1e-5, rtol=0)
    assert (dense - plain).abs().max() > 0.01  # the selection matters here


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("minimax_m3_vl_text", {"position_ids": [[*range(12), *range(12)]]}),
        ("minimax_m3_vl_text", {"cu_seq_lens_q": [0, 12, 24], "cu_seq_lens_k": [0, 12, 24]}),
        ("deepseek_v32", {"cu_seq_lens_q": [0, 12, 24], "cu_seq_lens_k": [0, 12, 24]}),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_selection_separates_no_documents(name: str, packed: dict[str, list[Any]], seed: int) -> None:
    """That a token did not select those before its document, or itself, does not mean that it never will."""
    model, ids = build(name, "sdpa"), torch.randint(3, 50, (1, 24), generator=torch.Generator().manual_seed(seed))
    attach(model, "hard(p=0.0,k=2)")
    with pytest.raises(AttachError, match=r"no mask separates|packs 2 documents"), torch.no_grad():
        model(input_ids=ids, **{name: torch.tensor(values) for name, values in packed.items()})


def test_a_selection_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking waits for a GPU, and each layer has a selection of its own. Without one, a blur looks once in a pass."""
    from attentiondrop.torch.attach import shared_masks

    seen: list[torch.Tensor] = []
    monkeypatch.setattr(shared_masks, "_read", lambda mask, of=shared_masks._read: seen.append(mask) or of(mask))
    model = build("deepseek_v32", "sdpa")
    attach(model, "blur(sigma_max=0.5)")
    padding = torch.tensor([[0, 0] + [1] * 10, [1] * 12])
    model(input_ids=torch.randint(3, 50, (2, 12)), attention_mask=padding, use_cache=False)
    assert not seen


def test_a_selection_joins_any_mask() -> None:
    key = query = torch.zeros(1, 1, 4, 2)
    indices = torch.tensor([[[0, 1], [0, 1], [1, 2], [0, 3]]])
    selected = torch.zeros(1, 1, 4, 4, dtype=torch.bool).scatter(-1, indices[:, None], True)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    added = torch.zeros(1, 1, 4, 4).masked_fill(~causal, -torch.inf)
    blocks = Blocks(torch.eye(2, dtype=torch.bool), 2)

    def joined(mask: Any, **more: Any) -> Any:
        return with_selection(nn.Identity(), query, key, mask, {"indices": indices, **more})

    assert torch.equal(joined(causal), causal & selected)
    assert torch.equal(joined(added) > -1, causal & selected)
    assert torch.equal(joined(blocks), blocks.dense(4, 4) & selected)
    assert with_selection(nn.Identity(), query, key, blocks, {"indices": None}) is blocks
    with pytest.raises(AttachError, match="Identity selects keys, but gives no mask"):
        joined(None)


#: What models of transformers give their attention function by name. What changes the result is used (the parameters of
#: our function, and the selections). The rest is for kernels of others, or repeats what the mask says.
KNOWN = {"indices", "block_indices", "position_ids", "sliding_window", "output_attentions", "deterministic"}
KNOWN |= {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}


def test_no_model_gives_its_attention_function_what_is_not_known() -> None:
    """A new release of transformers may pass something that our function would ignore."""
    from attentiondrop.torch.attach.transformers_attention import attention_forward

    known = KNOWN | set(inspect.signature(attention_forward).parameters)
    calls = []
    for file in (Path(transformers.__file__).parent / "models").glob("*/modeling_*.py"):
        found = re.findall(r"= attention_interface\((.*?)\n +\)", file.read_text(encoding="utf-8"), re.DOTALL)
        calls += [(file.stem, re.findall(r"^ +(\w+)=", call, re.MULTILINE)) for call in found]
    assert sum("dropout" in words for _, words in calls) > 100
    assert not {(model, word) for model, words in calls for word in words if word not in known}
