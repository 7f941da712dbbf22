"""The README's own code, run as it stands there."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_example_prints_what_it_says() -> None:
    pytest.importorskip("timm")
    (language, code), (_, expected) = BLOCKS[:2]
    assert language == "python" and README.index(code) < README.index("\n", 300)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    assert output.getvalue().strip() == expected.strip()


def test_the_examples_of_use_run() -> None:
    timm = pytest.importorskip("timm")
    import attentiondrop as ad
    from attentiondrop.torch import attach, detach

    changing, own = (
        next(text for language, text in BLOCKS if language == "python" and words in text)
        for words in ("attachment.update(", "AttentionDrop(")
    )
    q, k, v = torch.randn(3, 1, 2, 6, 4)

    class Self:
        training = True

    names: dict[str, Any] = {
        "ad": ad,
        "attach": attach,
        "detach": detach,
        "self": Self,
        "q": q,
        "k": k,
        "v": v,
        "logits": torch.randn(1, 2, 6, 6),
        "mask": None,
    }
    names["model"] = timm.create_model("vit_tiny_patch16_224")
    exec(changing, names)
    attach(names["model"], "hard(p=0.1,k=5)")  # possible, since nothing is attached any more
    exec(own, names)
    assert names["out"].shape == (1, 2, 6, 4) and names["weights"].shape == (1, 2, 6, 6)


def test_the_consistency_example_runs() -> None:
    timm = pytest.importorskip("timm")
    import attentiondrop as ad
    from attentiondrop.torch import attach

    code = next(text for language, text in BLOCKS if language == "python" and "consistency_loss(" in text)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=32).train()
    attach(model, "hard(p=0.1,k=5)")  # the first example
    names: dict[str, Any] = {"ad": ad, "attach": attach, "model": model}
    names |= {"images": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 4])}
    exec(code, names)
    assert f"# {ad.presets.vision()}\n" in code
    assert names["result"].divergence > 0 and model.patch_embed.proj.weight.grad is not None


def test_the_recipe_for_own_images_takes_all_of_them(tmp_path: Path) -> None:
    from attentiondrop.experiments.config.recipe_files import read_recipe

    (tmp_path / "mine.yaml").write_text(next(text for language, text in BLOCKS if language == "yaml"))
    recipe = read_recipe(str(tmp_path / "mine.yaml"))
    assert (recipe.data.name, recipe.data.root, recipe.data.train_fraction) == ("npz", "mine.npz", 1.0)
    assert recipe.training.epochs == 100 and read_recipe("cifar10").data.train_fraction == 0.2


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_every_spec_is_in_the_table() -> None:
    from attentiondrop.specs import REGISTRY

    for cls in REGISTRY.values():
        assert f"`{cls.__name__}(" in README
