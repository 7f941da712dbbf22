"""A hand-written attention layer: call `attention` in place of `scaled_dot_product_attention`, and pass a spec.

    python examples/own_attention_layer.py --spec "hard(p=0.1,k=5)"

The second layer works on logits of its own (here with a learned bias for each distance): `AttentionDrop` takes the
place of the softmax. The data is generated: how often does the last symbol occur? Ten seconds on one core.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.torch import AttentionDrop, attention

LENGTH, SYMBOLS, WIDTH, HEADS = 12, 4, 48, 4


class Layer(nn.Module):
    """Attention written by hand: fused with `attention`, or on logits with `AttentionDrop` if `biased`."""

    def __init__(self, spec: ad.Spec, biased: bool) -> None:
        super().__init__()
        self.spec = spec
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(HEADS, 2 * LENGTH)) if biased else None
        self.weights = AttentionDrop(spec)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.bias is None:
            mixed = attention(q, k, v, self.spec, is_causal=True, training=self.training)
        else:
            distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH) + LENGTH
            logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + self.bias[:, distance]
            mixed = self.weights(logits, is_causal=True) @ v
        return x + self.out(F.gelu(mixed.transpose(1, 2).flatten(2)))


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--spec", type=ad.parse, default="hard(p=0.1,k=5)")
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()
torch.manual_seed(0)
layers = [Layer(options.spec, biased) for biased in (False, True)]
model = nn.Sequential(nn.Embedding(SYMBOLS, WIDTH), *layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LENGTH))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(options.steps + 1):
    symbols = torch.randint(SYMBOLS, (128, LENGTH))
    counts = (symbols == symbols[:, -1:]).sum(-1) - 1
    logits = model.train(step < options.steps)(symbols)[:, -1]
    if model.training:
        optimizer.zero_grad()
        F.cross_entropy(logits, counts).backward()
        optimizer.step()
print(f"{options.spec}: accuracy {(logits.argmax(-1) == counts).float().mean().item():.3f}")
