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


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys; print(json.dumps([n for n in {FRAMEWORKS} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_package_loads_no_framework() -> None:
    assert loaded_by("import attentiondrop, attentiondrop.reference") == set()


def test_the_torch_package_loads_only_torch() -> None:
    use = "import torch; m = torch.nn.MultiheadAttention(4, 2); t.attach(m, 'hard'); m(*torch.randn(3, 2, 1, 4))"
    assert loaded_by("import attentiondrop.torch") == {"torch"}
    assert loaded_by(f"import attentiondrop.torch as t; {use}") == {"torch"}


def test_nothing_of_the_library_loads_the_experiments() -> None:
    code = "import sys, attentiondrop.torch; sys.exit(any('experiments' in name for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)
