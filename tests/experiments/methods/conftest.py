"""A small vision transformer, and what a method makes of it."""

from __future__ import annotations

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from attentiondrop.experiments.methods.apply import Applied
from attentiondrop.experiments.methods.parse import read_method
from attentiondrop.experiments.tasks.interface import Batch
from attentiondrop.experiments.tasks.registry import find_task

TASK = find_task("classification")


def vit(**changes) -> VisionTransformer:
    """Nine patches and a class token, two blocks, four heads."""
    shape = {"img_size": 6, "patch_size": 2, "in_chans": 1, "num_classes": 5, "embed_dim": 16, "depth": 2}
    torch.manual_seed(0)
    model = VisionTransformer(**shape | {"num_heads": 4, "mlp_ratio": 2.0} | changes)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight *= 30  # attention is not uniform then
    return model


def batch(count: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch(torch.randn(count, 1, 6, 6, generator=generator), torch.arange(count) % 5)


class Made:
    """A model with a method."""

    def __init__(self, text: str, model: torch.nn.Module | None = None) -> None:
        self.method = read_method(text)
        rates = {"dropout": "proj_drop_rate", "drop_path": "drop_path_rate"}
        self.model = model or vit(**{rates[name]: rate for name, rate in self.method.model_rates().items()})
        torch.manual_seed(2)
        for part in self.method.comparators:
            part.build(self.model)
        self.applied = Applied(self.method, self.model)

    def loss(self, of: Batch | None = None, seed: int = 3, mode: str = "batch") -> torch.Tensor:
        """The training loss of one step."""
        torch.manual_seed(seed)
        self.model.train()
        self.applied.begin_epoch(1, 2)
        self.applied.begin_step(0.5)
        return self.applied.objective(TASK, 0.0, mode)(self.model, self.applied.batch(of or batch()))

    def evaluated(self) -> torch.Tensor:
        with torch.no_grad():
            return self.model.eval()(batch().inputs)


@pytest.fixture
def made():
    return Made
