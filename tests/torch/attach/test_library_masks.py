"""Libraries that hide keys by a finite number (-100 in Swin): in training these keys are hidden from a perturbation, too."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from checks import randomise
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop import reference
from attentiondrop.torch import attach
from attentiondrop.torch.attach.library_masks import hidden_by_infinity

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

#: Two of them leave nothing to chance. Without the mend, each gives keys of other parts of a window some weight.
SPECS = ["hard(p=1.0,k=16)", "blur(sigma_min=4.0,sigma_max=4.0)", "noise(sigma=50.0)"]
SIDE = 4
TOKENS = SIDE * SIDE

pytestmark = pytest.mark.filterwarnings("ignore::attentiondrop.AttentionDropWarning")


def parts() -> Tensor:
    """Two windows [2, tokens, tokens]: the first holds four parts of 2 x 2 tokens that must not see each other."""
    half = torch.arange(SIDE) // 2
    part = (2 * half[:, None] + half).flatten()
    return torch.stack([part[:, None] != part, torch.zeros(TOKENS, TOKENS, dtype=torch.bool)])


def timm_swin() -> tuple[nn.Module, str]:
    from timm.models.swin_transformer import WindowAttention

    return WindowAttention(8, num_heads=2, window_size=(SIDE, SIDE)), "mask"


def swin(implementation: str = "sdpa") -> tuple[nn.Module, str]:
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2], num_heads=[2], window_size=SIDE, drop_path_rate=0.0
    )
    config._attn_implementation = implementation
    return transformers.SwinModel(config).encoder.layers[0].blocks[1].attention, "attention_mask"


def built(make: Any, *arguments: Any) -> tuple[nn.Module, Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)
    module, name = make(*arguments)
    mask = torch.zeros(parts().shape).masked_fill(parts(), -100.0)
    return randomise(module, 2.0), torch.randn(2, TOKENS, 8, requires_grad=True), {name: mask}


def output(module: nn.Module, x: Tensor, arguments: dict[str, Tensor]) -> Tensor:
    result = module(x, **arguments)
    return result if isinstance(result, Tensor) else result[0]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("case", [(timm_swin,), (swin,), (swin, "eager")], ids=["timm", "sdpa", "eager"])
def test_no_token_depends_on_other_parts_of_its_window(case: Any, spec: str) -> None:
    module, x, mask = built(*case)
    attach(module, spec)
    module.train()
    (gradient,) = torch.autograd.grad(output(module, x, mask)[0, 0].square().sum(), [x])
    sees = ~parts()[0, 0]
    assert gradient[0, sees].abs().sum(-1).gt(0).all()
    assert not gradient[0, ~sees].any() and not gradient[1].any()


def test_the_bias_stays_inside_the_perturbed_logits() -> None:
    """A window of timm's Swin against the oracle: logits with their bias, blurred inside of each part."""
    module, x, mask = built(timm_swin)
    module.proj = nn.Identity()
    spec = ad.BlurSmoothing(sigma_min=1.0, sigma_max=1.0)
    attach(module, spec)
    q, k, v = module.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).detach().numpy()
    bias = module._get_rel_pos_bias().detach().numpy()
    visible = np.broadcast_to(~parts()[:, None].numpy(), (2, 2, TOKENS, TOKENS))
    want = reference.attention(q, k, v, spec, np.array(0.5), attn_mask=visible, bias=bias).output
    have = output(module.train(), x, mask).unflatten(-1, (2, 4)).transpose(1, 2)
    torch.testing.assert_close(have.detach().double(), torch.from_numpy(want), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [(timm_swin,), (swin,)], ids=["timm", "transformers"])
def test_evaluation_gets_the_mask_of_the_library(case: Any) -> None:
    module, x, mask = built(*case)
    kept = copy.deepcopy(mask)
    expected = output(module.eval(), x, mask)
    attach(module, "hard")
    assert torch.equal(output(module, x, mask), expected)
    output(module.train(), x, mask)
    assert all(torch.equal(mask[name], kept[name]) for name in mask)


def test_a_mask_by_position_is_found() -> None:
    module, x, mask = built(timm_swin)
    attach(module, "blur(sigma_min=4.0,sigma_max=4.0)")
    module.train()
    assert torch.equal(module(x, *mask.values()), module(x, **mask))


def test_segmentation_queries_do_not_see_hidden_patches() -> None:
    """EoMT hides by -1e9."""
    config = transformers.EomtConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, num_blocks=1)
    config._attn_implementation = "sdpa"
    from transformers.models.eomt.modeling_eomt import EomtAttention

    module = randomise(EomtAttention(config), 2.0).train()
    mask = torch.zeros(1, 2, 6, 6).masked_fill(torch.arange(6) > 2, -1e9)
    attach(module, "hard(p=1.0,k=6)")
    x = torch.randn(1, 6, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(x, mask)[0][0, 0].square().sum(), [x])
    assert gradient[0, :3].any() and not gradient[0, 3:].any()


@pytest.mark.parametrize("spec", SPECS)
def test_padding_of_markuplm_is_hidden(spec: str) -> None:
    """It hides padding by -10,000."""
    torch.manual_seed(0)
    config = transformers.MarkupLMConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = randomise(transformers.MarkupLMModel(config), 2.0)
    attach(model, spec)
    x = torch.randn(1, 6, 8, requires_grad=True)
    visible = torch.tensor([[1, 1, 1, 1, 0, 0]])
    found = model.train()(inputs_embeds=x, attention_mask=visible).last_hidden_state
    (gradient,) = torch.autograd.grad(found[0, 0].square().sum(), [x])
    assert gradient[0, :4].any() and not gradient[0, 4:].any()


def test_other_masks_stay_as_they_are() -> None:
    boolean = torch.tensor([True, False])
    assert hidden_by_infinity(boolean) is boolean and hidden_by_infinity(None) is None
    assert hidden_by_infinity(torch.tensor([0.0, -99.0, -100.0])).tolist() == [0.0, -99.0, -torch.inf]
