"""The Python blocks of the guides run as they stand there, with small models and data in the place of the reader's."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from documentation import python_blocks, run_block, run_page
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import attentiondrop as ad
from attentiondrop.torch import attach

#: Pages whose blocks are separate examples.
EXAMPLES = ("attach.md", "consistency.md", "schedules.md")
BLOCKS = [(page, number) for page in EXAMPLES for number in range(len(python_blocks(page)))]


@pytest.mark.parametrize(("page", "number"), BLOCKS)
def test_an_example_runs(page: str, number: int, tmp_path: Path) -> None:
    names = _common(tmp_path) | OWN.get((page, number), lambda folder: {})(tmp_path)
    run_block(page, number, names)


@pytest.mark.parametrize("page", ["evaluation.md", "long-sequences.md"])
def test_a_guide_runs(page: str, tmp_path: Path) -> None:
    logits, labels = torch.randn(20, 5), torch.arange(20) % 5
    q = torch.randn(1, 1, 256, 16)
    mask = torch.nn.attention.flex_attention.create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, "cpu")
    run_page(
        page,
        _common(tmp_path)
        | {"pixels": torch.rand(4, 3, 8, 8), "normalise": lambda pixels: pixels - 0.5}
        | {"validation_logits": logits, "validation_labels": labels}
        | {"q": q, "k": q, "v": q, "table": torch.ones(2, 2, dtype=torch.bool), "block_mask": mask},
    )


def _common(folder: Path) -> dict[str, Any]:
    """What the text around many blocks takes for granted."""
    names = {"torch": torch, "F": F, "ad": ad, "attach": attach, "model": _vit(), "path": folder / "state.pt"}
    names |= {"images": torch.rand(4, 3, 8, 8), "labels": torch.tensor([0, 1, 2, 4]), "step": 3, "steps": 10}
    return names | {"attachment": attach(nn.TransformerEncoderLayer(8, 2, batch_first=True), "hard(p=0.1,k=5)")}


def _vit() -> nn.Module:
    timm = pytest.importorskip("timm")
    size = {"img_size": 8, "patch_size": 2, "embed_dim": 12, "num_heads": 2, "depth": 12, "num_classes": 5}
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", **size)
    return model.train()


def _without_an_attachment(folder: Path) -> dict[str, Any]:
    """A block that uses `attachment` must make it."""
    return {"model": nn.Transformer(8, 2, 1, 1, 8, batch_first=True), "attachment": None}


def _mistral(folder: Path) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.MistralConfig(vocab_size=20, intermediate_size=16, sliding_window=4, **size)
    return {"model": transformers.MistralForCausalLM(config)}


def _trainer(folder: Path) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    size = {"hidden_size": 8, "num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=20, **size))
    arguments = transformers.TrainingArguments(str(folder), use_cpu=True, report_to="none")
    return {"model": model, "arguments": arguments, "data": []}


def _lightning(folder: Path) -> dict[str, Any]:
    lightning = pytest.importorskip("lightning")

    class LightningModule(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.encoder(rows).mean(dim=1)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    settings = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "default_root_dir": folder}
    trainer = functools.partial(lightning.Trainer, **quiet, **settings)
    loader = DataLoader(TensorDataset(torch.randn(4, 3, 8), torch.arange(4)), batch_size=2)
    return {"LightningModule": LightningModule, "Trainer": trainer, "loader": loader}


#: What only one block takes for granted.
OWN = {
    ("attach.md", 0): _without_an_attachment,
    ("attach.md", 1): _mistral,
    ("attach.md", 2): lambda folder: {"spec": "hard(p=0.1,k=5)", "batch": torch.rand(2, 3, 8, 8)},
    ("attach.md", 3): lambda folder: {"mesh": SimpleNamespace(get_local_rank=lambda dimension: 0)},
    ("consistency.md", 1): _trainer,
    ("consistency.md", 2): _lightning,
}
