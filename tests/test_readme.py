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


def test_the_second_example_runs() -> None:
    timm = pytest.importorskip("timm")
    import attentiondrop as ad

    code = next(text for language, text in BLOCKS if language == "python" and "AttentionDrop(" in text)
    q, k, v = torch.randn(3, 1, 2, 6, 4)

    class Self:
        training = True

    names: dict[str, Any] = {
        "ad": ad,
        "self": Self,
        "q": q,
        "k": k,
        "v": v,
        "logits": torch.randn(1, 2, 6, 6),
        "mask": None,
    }
    names["model"] = timm.create_model("vit_tiny_patch16_224")
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, names)
    assert names["out"].shape == (1, 2, 6, 4) and names["weights"].shape == (1, 2, 6, 6)


def test_the_consistency_example_runs() -> None:
    timm = pytest.importorskip("timm")
    import attentiondrop as ad
    from attentiondrop.torch import attach

    code = next(text for language, text in BLOCKS if language == "python" and "consistency_loss(" in text)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=32).train()
    names: dict[str, Any] = {"ad": ad, "attach": attach, "model": model, "F": torch.nn.functional}
    names |= {"images": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 4])}
    exec(code, names)
    assert names["result"].divergence > 0 and model.patch_embed.proj.weight.grad is not None


def test_every_spec_is_in_the_table() -> None:
    from attentiondrop.specs import REGISTRY

    for cls in REGISTRY.values():
        assert f"`{cls.__name__}(" in README
