"""A vision transformer on scikit-learn's digits that is small enough to train in seconds."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from attentiondrop.theory.fitting import Schedule, fit_model, task_loss
from attentiondrop.torch import attach


def build(spec: str | None = None, depth: int = 2, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = VisionTransformer(
        img_size=8, patch_size=2, in_chans=1, embed_dim=32, depth=depth, num_heads=2, mlp_ratio=2.0, num_classes=10,
        weight_init="moco", proj_drop_rate=dropout,
    )  # fmt: skip
    nn.init.normal_(model.get_parameter("pos_embed"), std=0.5)
    if spec is not None:
        attach(model, spec)
    return model


@cache
def digits() -> tuple[Tensor, Tensor]:
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32)[:, None]
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return ((images - images.mean()) / images.std())[order], torch.tensor(bunch.target)[order]


@cache
def trained(spec: str = "hard(p=0.1,k=3)") -> nn.Module:
    """Trained on the first 600 images."""
    model = build(spec)
    images, labels = digits()
    torch.manual_seed(1)
    fit_model(model, task_loss, images[:600], labels[:600], Schedule(epochs=6, learning_rate=3e-3), 0, lambda: None)
    return model.eval()
