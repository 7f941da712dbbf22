from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attentiondrop as ad
from attentiondrop import oracle_draws, reference
from attentiondrop.cli.main import main


def test_a_picture_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new folder" / "attention.png"
    specs = ["hard(p=0.5,k=3)", "blur(sigma_max=1.0)+attndropout", "oneof(noise,dropkey)", "hard(k=2,heads=stratified)"]
    assert main(["show", *specs, "--out", str(out), "--causal"]) == 0
    assert capsys.readouterr().out == f"picture: {out}\n"
    from matplotlib.image import imread

    pixels = imread(out)
    assert pixels.shape[0] > 800 and pixels.std() > 0.1


def test_without_specs_every_regulariser_of_rows_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("attentiondrop.pictures.draw", lambda path, specs, *rest: asked.append([s.name for s in specs]))
    assert main(["show", "--out", str(tmp_path / "all.png")]) == 0
    assert {"hard", "blur", "noise", "dropkey", "attndropout"} <= set(asked[0])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["hard(q=1)"], "unknown field 'q'"),
        (["consistency"], "specs: expected a spec that acts on attention"),
        (["hard", "--out", "picture.doc"], "out: expected a name that ends in .png, .pdf or .svg"),
        (["hard", "--tokens", "1"], "tokens: expected a number >= 4, received 1"),
        (["hard", "--seed", "-1"], "seed: expected a number >= 0, received -1"),
    ],
)
def test_bad_requests(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["show", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_numpy_draws_have_the_right_rates() -> None:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 4, 30, 8))
    spec = ad.HardMasking(p=0.5, k=4, heads="stratified", fill="-inf")
    draws = oracle_draws.sample(spec, (2, 4, 30, 30), rng)
    assert ((draws < 0.5).sum(axis=1) == 2).all()
    weights = reference.attention(q, q, q, spec, draws).weights
    assert (weights == 0).sum() == (draws < 0.5).sum()
