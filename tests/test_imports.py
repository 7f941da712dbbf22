"""Import rules, each in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys

FRAMEWORKS = [
    "torch",
    "tensorflow",
    "keras",
    "jax",
    "triton",
    "transformers",
    "timm",
    "torchvision",
    "lightning",
    "sklearn",
]


def loaded_by(*statements: str) -> list[set[str]]:
    """What is loaded after each statement: frameworks, and `experiments` for any module of ours of that name."""
    look = (
        f"print(json.dumps([n for n in {FRAMEWORKS} if n in sys.modules]"
        " + ['experiments'] * any(n.startswith('attentiondrop.experiments') for n in sys.modules)))"
    )
    code = "\n".join(["import json, sys", *(f"{statement}\n{look}" for statement in statements)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [set(json.loads(line)) for line in done.stdout.splitlines()[-len(statements) :]]


def test_the_package_loads_no_framework() -> None:
    assert loaded_by("import attentiondrop, attentiondrop.reference") == [set()]


def test_the_torch_package_loads_only_torch() -> None:
    use = "import torch; m = torch.nn.MultiheadAttention(4, 2); t.attach(m, 'hard'); m(*torch.randn(3, 2, 1, 4))"
    assert loaded_by("import attentiondrop.torch as t", use) == [{"torch"}, {"torch"}]
