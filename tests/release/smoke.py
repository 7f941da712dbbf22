"""What an installed wheel must do, run by `check_wheel.py` with the Python of an empty environment.

`python smoke.py base` needs only NumPy, `python smoke.py torch` needs PyTorch.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def base() -> None:
    """Specs, the oracle, package data, and the commands that need no framework."""
    import numpy as np

    import attentiondrop as ad
    from attentiondrop import reference

    here = Path(ad.__file__).parent
    assert Path(sys.prefix) in here.parents, f"{here} is not the installed package"
    for pattern in ("recipes/*.yaml", "py.typed", "experiments/report/templates/*.html", "torch/kernels/**/*.cu*"):
        assert list(here.glob(pattern)), pattern
    spec = ad.parse("hard(p=0.5,k=2)+blur(sigma_max=0.5)")
    assert ad.from_dict(spec.to_dict()) == spec
    logits = np.random.default_rng(0).normal(size=(1, 2, 4, 4))
    assert (reference.top_k(logits, np.ones_like(logits, dtype=bool), k=2).sum(-1) == 2).all()
    for command in ((), ("--version",), ("info",), ("methods",)):
        script = Path(sys.prefix) / "bin" / "attentiondrop"
        shown = subprocess.run([script, *command], capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        print(shown.stdout.splitlines()[0])


def torch() -> None:
    """Attach to a Transformer, train one step, and leave evaluation as it was."""
    import torch

    import attentiondrop as ad
    from attentiondrop.torch import attach, attention, consistency_loss

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 2), torch.nn.Flatten(), torch.nn.Linear(6 * 16, 3))
    inputs, labels = torch.randn(4, 6, 16), torch.tensor([0, 1, 2, 0])
    before = model.eval()(inputs)
    attachment = attach(model, "hard(p=0.5,k=3)+consistency(weight=0.5)")
    assert torch.equal(model.eval()(inputs), before)
    model.train()
    assert not torch.equal(model(inputs), before)
    cross_entropy = torch.nn.functional.cross_entropy
    consistency_loss(model, inputs, lambda output: cross_entropy(output, labels)).loss.backward()
    attachment.remove()
    q, k, v = torch.randn(3, 1, 2, 5, 8, requires_grad=True)
    attention(q, k, v, ad.BlurSmoothing(sigma_max=0.5), is_causal=True, training=True).sum().backward()
    print(f"torch {torch.__version__}: attached, trained, evaluated")


if __name__ == "__main__":
    {"base": base, "torch": torch}[sys.argv[1]]()
