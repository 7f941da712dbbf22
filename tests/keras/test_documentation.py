"""The first example of docs/keras.md, run as it stands there, and what importing the package loads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras_parity import BACKEND

PAGE = (Path(__file__).parents[2] / "docs" / "keras.md").read_text(encoding="utf-8")


def test_the_first_example_runs(capsys: Any) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    assert "hard(p=0.1,k=5)" in capsys.readouterr().out
    model = names["model"]
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(np.ones((2, 16, 32), "float32"), np.zeros(2, "int32"), verbose=0)


def test_the_package_loads_no_framework_that_keras_does_not() -> None:
    code = """if True:
        import sys, keras
        frameworks = {"tensorflow", "jax", "torch", "keras_hub"}
        before = frameworks & set(sys.modules)
        import attentiondrop.keras
        sys.exit(frameworks & set(sys.modules) != before)
    """
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "KERAS_BACKEND": BACKEND}, check=True)
