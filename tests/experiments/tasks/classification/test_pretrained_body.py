"""Models of timm that begin with the weights of a local file: all but the head."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs.checking import check_jobs
from attentiondrop.experiments.runs.execute import data_for, execute
from attentiondrop.experiments.runs.folders import run_folder
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.tasks.classification.settings import TimmSettings
from attentiondrop.experiments.tasks.classification.timm_models import build_model
from attentiondrop.experiments.tasks.registry import find_task
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
        ArgumentError,
        match=r"does not fit the model: it has 1 blocks, the model 2 \(model.name, or model.arguments.depth\); "
        r"\d+ tensors differ, such as blocks.1\S+: expected ",
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"patch_size": 4}, ["it has patches of 8 pixels, the model 4 (model.patch_size); "]),
        (
            {"arguments": {"depth": 2, "embed_dim": 96}},
            ["a width of 192, the model 96 (model.name); ", "1 blocks, the "],
        ),
        ({"size": 48}, ["it has 17 positions, the model 37 (data.image_size); "]),
        ({"channels": 1}, ["it has 3 channels, the images 1; "]),
        ({"name": "resnet10t", "patch_size": None, "arguments": {}}, ["does not fit the model: 1"]),
    ],
)
def test_what_differs_is_said_in_words(change: dict, words: list[str], tmp_path: Path) -> None:
    def build(checkpoint: str | None, name="vit_tiny_patch16_224", patch_size=8, channels=3, size=32, **more):
        settings = TimmSettings(name, patch_size, checkpoint=checkpoint, **{"arguments": {"depth": 1}, **more})
        return build_model(settings, classes=3, channels=channels, size=size, rates={}, seed=0)

    file = tmp_path / "model.safetensors"
    save_file(build(None).state_dict(), file)
    with pytest.raises(ArgumentError) as raised:
        build(str(file), **change)
    assert all(word in str(raised.value) for word in words), raised.value


def test_the_recipe_of_the_page_fine_tunes_own_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image = pytest.importorskip("PIL.Image")
    pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[4] / "docs/fine-tuning.md").read_text(encoding="utf-8")
    Path("tune.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    recipe = read_recipe("tune.yaml")
    # The model is that of the published weights.
    model = build_model(
        dataclasses.replace(recipe.model, checkpoint=None), classes=3, channels=3, size=224, rates={}, seed=0
    )
    assert recipe.model.name == "vit_small_patch16_224" and model.patch_embed.patch_size == (16, 16)
    published = timm.create_model(recipe.model.name, num_classes=3)
    assert {k: v.shape for k, v in model.state_dict().items()} == {
        k: v.shape for k, v in published.state_dict().items()
    }
    # A small one stands in for it.
    for name in ("train/a", "train/b", "val/a", "val/b"):
        Path("my-images", name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (256, 240), (60 * number, 80, 5)).save(Path("my-images", name, f"{number}.png"))
    small = {"depth": 1, "embed_dim": 12, "num_heads": 2}
    Path("my-checkpoint").mkdir()
    stand_in = timm.create_model(recipe.model.name, **small)
    save_file(stand_in.state_dict(), "my-checkpoint/model.safetensors")
    changes = [f"model.arguments={small}", "data.validation=0.4", "data.workers=0"]
    recipe = read_recipe("tune.yaml", None, changes)
    check_jobs([Job(recipe.to_dict(), method, 0, "out") for method in recipe.methods])
    model = find_task(recipe.task).build_model(recipe.model, data_for(recipe), {}, 0)
    assert torch.equal(model.blocks[0].attn.qkv.weight, stand_in.blocks[0].attn.qkv.weight)
    assert model.head.weight.shape == (2, 12)


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
