"""Images and captions with a CLIP-style dual encoder: AttentionDrop in both encoders, recall of retrieval measured.

    python examples/clip_retrieval.py --spec "hard(p=0.1,k=5)"

The data is generated: each image has 16 noisy patches, two of them with a thing of some colour, and its caption names
both in reading order. Half a minute on one core.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentiondrop.torch import attach

PATCHES, COLOURS, THINGS, WIDTH = 16, 6, 6, 48
KINDS = COLOURS + THINGS


def make_pairs(count: int) -> tuple[Tensor, Tensor]:
    """Images [count, patches, kinds + patches], each patch with its place, and captions [count, 4] of other words."""
    colours, things = torch.randint(COLOURS, (count, 2)), torch.randint(THINGS, (count, 2))
    places = torch.rand(count, PATCHES).topk(2).indices.sort().values
    shown = torch.cat([F.one_hot(colours, COLOURS), F.one_hot(things, THINGS)], -1).float()
    images = 0.3 * torch.randn(count, PATCHES, KINDS)
    images.scatter_add_(1, places[..., None].expand_as(shown), shown)
    images = torch.cat([images, torch.eye(PATCHES).expand(count, -1, -1)], -1)
    return images, torch.stack([colours, things + COLOURS], -1).flatten(1) + KINDS * torch.arange(4)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--spec", default="hard(p=0.1,k=5)")
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()
torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True, norm_first=True) for _ in range(2)]
encoders = nn.ModuleList([nn.TransformerEncoder(layer, 2, enable_nested_tensor=False) for layer in layers])
inputs = nn.ModuleList([nn.Linear(KINDS + PATCHES, WIDTH), nn.Embedding(4 * KINDS, WIDTH)])
model = nn.ModuleDict({"inputs": inputs, "encoders": encoders})
print(attach(model, options.spec, kinds="encoder"))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(options.steps + 1):
    pairs = make_pairs(64 if step < options.steps else 256)
    model.train(step < options.steps)
    parts = zip(pairs, inputs, encoders, strict=True)
    one, other = (F.normalize(encode(embed(x)).mean(1), dim=-1) for x, embed, encode in parts)
    fit, right = 8 * one @ other.T, torch.arange(len(one))
    if step == options.steps:
        break
    loss = (F.cross_entropy(fit, right) + F.cross_entropy(fit.T, right)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0 or step == options.steps - 1:
        print(f"step {step}: loss {loss.item():.3f}")
found = (pairs[1][fit.topk(5).indices] == pairs[1][:, None]).all(-1).float()
print(f"recall of 256 captions: @1 {found[:, 0].mean():.3f}, @5 {found.amax(-1).mean():.3f}")
