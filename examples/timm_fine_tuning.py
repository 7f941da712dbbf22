"""Fine-tune a timm model with AttentionDrop: one line before the training loop, nothing to undo after it.

    python examples/timm_fine_tuning.py --spec "hard(p=0.1,k=5)"

A small ViT of timm first learns the digits 0 to 4 (in place of a download), then gets a new head and is fine-tuned on a
few images of the digits 5 to 9, with and without AttentionDrop. Ten seconds on one core.
"""

import argparse
import copy

import timm
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from attentiondrop.torch import attach


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, rate: float) -> None:
    """A plain training loop, which knows nothing of AttentionDrop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(64):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--spec", default="hard(p=0.1,k=5)")
parser.add_argument("--epochs", type=int, default=20)
options = parser.parse_args()
digits = load_digits()
images, labels = torch.tensor(digits.images).float()[:, None] / 16, torch.tensor(digits.target)
torch.manual_seed(0)
shape = {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 48, "depth": 3, "num_heads": 3}
model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **shape)
first = labels < 5
train(model, images[first], labels[first], options.epochs, rate=2e-3)

model.reset_classifier(5)
images, labels = images[~first], labels[~first] - 5
for spec in (None, options.spec):
    tuned = copy.deepcopy(model)
    if spec is not None:
        print(attach(tuned, spec))
    torch.manual_seed(1)
    train(tuned, images[:200], labels[:200], options.epochs, rate=2e-3)
    accuracy = (tuned.eval()(images[200:]).argmax(-1) == labels[200:]).float().mean().item()
    print(f"{spec or 'plain fine-tuning'}: accuracy {accuracy:.3f} on {len(labels) - 200} images")
