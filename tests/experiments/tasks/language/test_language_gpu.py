"""Language models on a GPU: their steps are captured, and end where uncaptured ones do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attentiondrop.experiments.train import loop

from .small import training

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("method", ["none", "hard(p=0.3)", "blur(sigma_max=1.0)", "dropout(p=0.2)", "hard+consistency"])
def test_captured_steps_end_where_uncaptured_ones_do(method: str, tmp_path: Path, monkeypatch) -> None:
    exact = loop.warmup_then_cosine
    monkeypatch.setattr(loop, "warmup_then_cosine", lambda *args: float(np.float32(exact(*args))))
    changes = ["training.device=cuda", f"training.learning_rate={2.0**-9}"]
    plain = training(tmp_path / "off", method, *changes, "training.capture=off")
    captured = training(tmp_path / "on", method, *changes, "training.capture=on")
    losses = [[epoch.train_loss for epoch in each.run(lambda epoch: None)] for each in (plain, captured)]
    assert captured.captured == "captured"
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_packed_batch_is_refused_before_and_after_the_first_looks() -> None:
    """The first calls raise. Later ones leave it to the device, so only batches of one document are tried there."""
    transformers = pytest.importorskip("transformers")
    import attentiondrop as ad
    from attentiondrop.torch import attach

    config = transformers.GPT2Config(vocab_size=20, n_layer=2, n_head=2, n_embd=16, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).cuda().train()
    attach(model, ad.HardMasking(p=0.5, k=2))
    words = torch.arange(8, device="cuda")[None]
    packed = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]], device="cuda")
    with pytest.raises(ad.AttentionDropError, match="position_ids pack several documents"):
        model(words, position_ids=packed)
    for _ in range(4):
        model(words, position_ids=words)
    torch.cuda.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(words, position_ids=words)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
