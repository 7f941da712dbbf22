"""Models of timm that begin with the weights of a local file: all but the head."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.tasks.classification.settings import TimmSettings
from attentiondrop.experiments.tasks.classification.timm_models import build_model
from attentiondrop.experiments.train.accelerator import on_this_machine

from ...conftest import TINY

SHAPE = {"classes": 4, "channels": 1, "size": 8, "rates": {}}
ARGUMENTS = {"depth": 1, "embed_dim": 16, "num_heads": 2}


def digits(seed: int, checkpoint: Path | None = None, **arguments: int):
    settings = TimmSettings(arguments=ARGUMENTS | arguments, checkpoint=None if checkpoint is None else str(checkpoint))
    return build_model(settings, **SHAPE, seed=seed)


@pytest.mark.parametrize("form", ["file", "folder", "run"])
def test_all_weights_but_the_head_come_from_the_file(form: str, tmp_path: Path) -> None:
    saved = digits(0)
    file = tmp_path / {"file": "any.safetensors", "folder": "model.safetensors", "run": "best.safetensors"}[form]
    save_file(saved.state_dict(), file)
    model = digits(1, file if form == "file" else tmp_path)
    for name, tensor in digits(1).state_dict().items():
        expected = tensor if name.startswith("head.") else saved.state_dict()[name]
        assert torch.equal(model.state_dict()[name], expected), name


def test_a_folder_of_timm_is_read(tmp_path: Path) -> None:
    from timm.models import save_for_hf

    torch.manual_seed(0)
    saved = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, num_classes=5)
    save_for_hf(saved, tmp_path, safe_serialization=True)
    settings = TimmSettings("vit_tiny_patch16_224", patch_size=8, arguments={"depth": 1}, checkpoint=str(tmp_path))
    model = build_model(settings, classes=3, channels=3, size=32, rates={}, seed=0)
    assert torch.equal(model.blocks[0].attn.qkv.weight, saved.blocks[0].attn.qkv.weight)
    assert model.head.weight.shape == (3, 192)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(digits(0).state_dict(), file)
    with pytest.raises(
        ArgumentError, match=r"does not fit the model: \d+ tensors differ, such as blocks.1\S+: expected "
    ):
        digits(0, tmp_path, depth=2)
    save_file(digits(0, depth=2).state_dict(), file)
    with pytest.raises(ArgumentError, match=r"tensors differ, such as blocks.1\S+: expected none, found \["):
        digits(0, tmp_path)
    file.write_bytes(b"no tensors")
    with pytest.raises(ArgumentError, match=r"model.checkpoint: .*model.safetensors cannot be read: "):
        digits(0, tmp_path)
    file.rename(tmp_path / "model.bin")
    with pytest.raises(ArgumentError, match=r"a .safetensors file, or a folder with best.safetensors or model.safete"):
        digits(0, tmp_path)


def test_a_run_begins_where_another_ended(tmp_path: Path) -> None:
    first = read_recipe("digits", "demo", TINY)
    execute(Job(first.to_dict(), "none", 0, str(tmp_path / "first")))
    folder = run_folder(tmp_path / "first", "none", 0)
    second = read_recipe("digits", "demo", [*TINY, f"model.checkpoint={folder}", "data.train_fraction=0.5"])
    recipe = on_this_machine(second)
    assert len(recipe.model.checkpoint_sha256) == 64
    result = execute(Job(recipe.to_dict(), "hard", 0, str(tmp_path / "second")))
    assert result.error is None and result.status == "finished"
    again = execute(Job(recipe.to_dict(), "hard", 0, str(tmp_path / "second")))
    assert again == result
