"""Images and captions with a CLIP-style dual encoder: AttentionDrop in both encoders, recall of retrieval measured.

    python examples/clip_retrieval.py --spec "hard(p=0.1,k=5)"

The data is generated: each image has 16 noisy patches, two of them with a thing of some colour, and its caption names
both in reading order. Half a minute on one core.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentiondrop.torch import attach

PATCHES, COLOURS, THINGS = 16, 6, 6


def make_pairs(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images [count, patches, colours + things], and captions [count, 4]: colour, thing, colour, thing."""
    colours = torch.randint(COLOURS, (count, 2), generator=generator)
    things = torch.randint(THINGS, (count, 2), generator=generator)
    places = torch.rand(count, PATCHES, generator=generator).topk(2).indices.sort().values
    shown = torch.cat([F.one_hot(colours, COLOURS), F.one_hot(things, THINGS)], -1).float()
    images = 0.3 * torch.randn(count, PATCHES, COLOURS + THINGS, generator=generator)
    images.scatter_add_(1, places[..., None].expand_as(shown), shown)
    return images, torch.stack([colours, things + COLOURS], -1).flatten(1)


class DualEncoder(nn.Module):
    """An encoder for images and one for captions, with a common space."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        shape = {"nhead": 4, "dim_feedforward": 2 * width, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.embeddings = nn.ModuleList([nn.Linear(COLOURS + THINGS, width), nn.Embedding(COLOURS + THINGS, width)])
        self.positions = nn.ParameterList([0.5 * torch.randn(length, width) for length in (PATCHES, 4)])
        layers = (nn.TransformerEncoderLayer(width, **shape) for _ in range(2))
        self.encoders = nn.ModuleList([nn.TransformerEncoder(x, 2, enable_nested_tensor=False) for x in layers])
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor, captions: Tensor) -> Tensor:
        """How well each image fits each caption, [images, captions]."""
        parts = zip((images, captions), self.embeddings, self.positions, self.encoders, strict=True)
        one, other = (F.normalize(encode(embed(x) + where).mean(1), dim=-1) for x, embed, where, encode in parts)
        return self.scale.exp() * one @ other.T


@torch.no_grad()
def recall(model: DualEncoder, images: Tensor, captions: Tensor, k: int) -> float:
    """The share of images whose own caption is among the `k` best. An equal caption of another image is as good."""
    best = model.eval()(images, captions).topk(k).indices
    return (captions[best] == captions[:, None]).all(-1).any(-1).float().mean().item()


def main() -> None:
    """Train, and print the recall on held-out pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", default="hard(p=0.1,k=5)")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = DualEncoder()
    print(attach(model, options.spec, kinds="encoder"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(options.steps):
        fit = model.train()(*make_pairs(64, generator))
        right = torch.arange(len(fit))
        loss = (F.cross_entropy(fit, right) + F.cross_entropy(fit.T, right)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == options.steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")
    pairs = make_pairs(256, generator)
    print(f"recall of 256 captions: @1 {recall(model, *pairs, k=1):.3f}, @5 {recall(model, *pairs, k=5):.3f}")


if __name__ == "__main__":
    main()
