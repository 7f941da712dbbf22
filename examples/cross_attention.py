"""Questions about images with cross-attention: AttentionDrop only where the question looks at the image.

    python examples/cross_attention.py --spec "blur(sigma_max=0.5)" --kinds cross

The data is generated: each image has 9 patches of different things in some colour, and a question names a thing. The
answer is its colour. Half a minute on one core.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentiondrop.torch import attach

PATCHES, THINGS, COLOURS = 9, 12, 5


def make_questions(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Images [count, patches, things + colours], things asked for [count, 1], and their colours [count]."""
    things = torch.rand(count, THINGS, generator=generator).topk(PATCHES).indices
    colours = torch.randint(COLOURS, (count, PATCHES), generator=generator)
    images = torch.cat([F.one_hot(things, THINGS), F.one_hot(colours, COLOURS)], -1).float()
    images += 0.2 * torch.randn(images.shape, generator=generator)
    asked = torch.randint(PATCHES, (count, 1), generator=generator)
    return images, things.gather(1, asked), colours.gather(1, asked)[:, 0]


class Answering(nn.Module):
    """An encoder for the image, and a decoder whose cross-attention looks at it."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Linear(THINGS + COLOURS, width)
        self.question = nn.Embedding(THINGS, width)
        shape = {"nhead": 4, "dim_feedforward": 2 * width, "dropout": 0.0, "batch_first": True, "norm_first": True}
        encoder = nn.TransformerEncoderLayer(width, **shape)
        self.encoder = nn.TransformerEncoder(encoder, 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, **shape), 2)
        self.answer = nn.Linear(width, COLOURS)

    def forward(self, images: Tensor, asked: Tensor) -> Tensor:
        """[count, colours]."""
        seen = self.encoder(self.patches(images))
        return self.answer(self.decoder(self.question(asked), seen)[:, 0])


def main() -> None:
    """Train, and print the accuracy on held-out questions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", default="blur(sigma_max=0.5)")
    parser.add_argument("--kinds", nargs="+", default=["cross"], choices=("encoder", "decoder", "cross"))
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Answering()
    print(attach(model, options.spec, kinds=options.kinds))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(options.steps):
        *inputs, colours = make_questions(64, generator)
        loss = F.cross_entropy(model.train()(*inputs), colours)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == options.steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")
    *inputs, colours = make_questions(1000, generator)
    with torch.no_grad():
        accuracy = (model.eval()(*inputs).argmax(-1) == colours).float().mean().item()
    print(f"accuracy on 1,000 held-out questions: {accuracy:.3f}")


if __name__ == "__main__":
    main()
