"""Vision encoders that get all images of a batch in one row: no image, and no window, sees another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from checks import randomise
from torch import Tensor, nn

from attentiondrop.torch import attach

transformers = pytest.importorskip("transformers")

#: Patches (frames, height, width) of two images. The first one fills one window.
GRID = torch.tensor([[1, 4, 4], [1, 8, 4]])
FIRST = 16
PATCH = 3 * 2 * 4 * 4
SIZES = {"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_heads": 2}

pytestmark = pytest.mark.filterwarnings("ignore::attentiondrop.AttentionDropWarning")


def qwen2_vl() -> nn.Module:
    from transformers.models.qwen2_vl import configuration_qwen2_vl as configuration
    from transformers.models.qwen2_vl import modeling_qwen2_vl as modeling

    config = configuration.Qwen2VLVisionConfig(depth=2, embed_dim=32, hidden_size=16, **SIZES)
    return modeling.Qwen2VisionTransformerPretrainedModel._from_config(config)


def qwen2_5_vl() -> nn.Module:
    """Its layers attend inside windows, all but the one in the middle."""
    from transformers.models.qwen2_5_vl import configuration_qwen2_5_vl as configuration
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as modeling

    widths = {"hidden_size": 32, "out_hidden_size": 16, "intermediate_size": 32}
    config = configuration.Qwen2_5_VLVisionConfig(depth=3, window_size=16, fullatt_block_indexes=[1], **widths, **SIZES)
    return modeling.Qwen2_5_VisionTransformerPretrainedModel._from_config(config)


def merged(model: nn.Module, patches: Tensor) -> Tensor:
    output = model(patches, grid_thw=GRID)
    return output if isinstance(output, Tensor) else output.pooler_output


@pytest.mark.parametrize("build", [qwen2_vl, qwen2_5_vl])
def test_no_image_sees_another_one(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = randomise(build()).train()
    attachment = attach(model, "hard(p=1.0,k=99)")
    for spec in ("hard(p=1.0,k=99)", "blur(sigma_min=4.0,sigma_max=4.0)", "noise(sigma=2.0)", "dropkey(p=0.4)"):
        attachment.update(spec)
        patches = torch.randn(FIRST + 32, PATCH, requires_grad=True)
        (gradient,) = torch.autograd.grad(merged(model, patches)[: FIRST // 4].square().sum(), [patches])
        assert gradient[:FIRST].any() and not gradient[FIRST:].any(), spec
