"""A vision transformer of timm, small enough to train on two cores: 16 patches and 4 blocks."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer

#: `weight_init` names a scheme of timm that scales with the fan-in.
SHAPE: dict[str, Any] = {
    "img_size": 8,
    "patch_size": 2,
    "in_chans": 1,
    "embed_dim": 64,
    "depth": 4,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "weight_init": "moco",
}
#: Much larger than timm's 0.02, because a patch of 2 x 2 pixels says little without its position. Chosen on the
#: validation part, see docs/experiments.md.
POSITION_STD = 0.5


def build(**arguments: Any) -> VisionTransformer:
    """A new model. Its weights depend only on torch's global generator, not on any rate."""
    model = VisionTransformer(**SHAPE | arguments)
    torch.nn.init.normal_(model.get_parameter("pos_embed"), std=POSITION_STD)
    return model
