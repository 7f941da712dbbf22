"""Lightning: a callback attaches during the fit and detaches after it, a mixin adds the consistency loss.

    python examples/lightning_fit.py --spec "blur(sigma_max=0.5)+consistency(weight=0.5)"

A small Transformer reads scikit-learn's digits row by row. Ten seconds on one core.
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from attentiondrop.integrations.lightning import AttentionDropCallback, ConsistencyMixin


class Digits(ConsistencyMixin, LightningModule):
    """The eight rows of an image are eight tokens. The mixin brings `training_step`."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed, self.positions = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, 10]."""
        return self.head(self.encoder(self.embed(images) + self.positions).mean(1))

    def task_loss(self, output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of one pass. The mixin adds the divergence of two passes."""
        return F.cross_entropy(output, batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--spec", default="blur(sigma_max=0.5)+consistency(weight=0.5)")
parser.add_argument("--epochs", type=int, default=15)
options = parser.parse_args()
digits, model = load_digits(), Digits()
images, labels = torch.tensor(digits.images).float() / 16, torch.tensor(digits.target)
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
dropping = AttentionDropCallback(options.spec)
trainer = Trainer(max_epochs=options.epochs, accelerator="cpu", callbacks=[dropping], **quiet)
trainer.fit(model, DataLoader(TensorDataset(images[:1000], labels[:1000]), batch_size=64, shuffle=True))
apart = trainer.callback_metrics["train_divergence"].item()
accuracy = (model.eval()(images[1000:]).argmax(-1) == labels[1000:]).float().mean().item()
print(f"{options.spec}: accuracy {accuracy:.3f}, divergence of the last batch {apart:.4f}")
