"""Questions about images with cross-attention: AttentionDrop only where the question looks at the image.

    python examples/cross_attention.py --spec "blur(sigma_max=0.5)" --kinds cross

The data is generated: each image has 9 patches of different things in some colour, and a question names a thing. The
answer is its colour. Half a minute on one core.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentiondrop.torch import attach

PATCHES, THINGS, COLOURS, WIDTH = 9, 12, 5, 48


def make_questions(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images [count, patches, things + colours], things asked for [count, 1], and their colours [count]."""
    things = torch.rand(count, THINGS).topk(PATCHES).indices
    colours = torch.randint(COLOURS, (count, PATCHES))
    images = torch.cat([F.one_hot(things, THINGS), F.one_hot(colours, COLOURS)], -1).float()
    asked = torch.randint(PATCHES, (count, 1))
    return images + 0.2 * torch.randn(images.shape), things.gather(1, asked), colours.gather(1, asked)[:, 0]


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--spec", default="blur(sigma_max=0.5)")
parser.add_argument("--kinds", nargs="+", default=["cross"], choices=("encoder", "decoder", "cross"))
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()
torch.manual_seed(0)
patches, question = nn.Linear(THINGS + COLOURS, WIDTH), nn.Embedding(THINGS, WIDTH)
body = nn.Transformer(WIDTH, 4, 1, 2, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
answer = nn.Linear(WIDTH, COLOURS)
model = nn.ModuleDict({"patches": patches, "question": question, "body": body, "answer": answer})
print(attach(model, options.spec, kinds=options.kinds))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(options.steps + 1):
    testing = step == options.steps
    images, asked, colours = make_questions(1000 if testing else 64)
    model.train(not testing)
    logits = answer(body(patches(images), question(asked))[:, 0])
    if not testing:
        loss = F.cross_entropy(logits, colours)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == options.steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")
accuracy = (logits.argmax(-1) == colours).float().mean().item()
print(f"accuracy on 1,000 held-out questions: {accuracy:.3f}")
