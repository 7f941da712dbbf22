"""P10: the gains of three methods at three amounts of data and with wrong labels, judged from made-up results."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SEEDS = range(100, 110)
FOLDERS = {
    "half": "cifar10-half",
    "fifth": "cifar10-20pct-confirm",
    "tenth": "cifar10-20pct-tenth",
    "noisy": "cifar10-20pct-noise",
}


@pytest.fixture
def claim(docs_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    found = docs_module("scarce_or_noisy")
    monkeypatch.setattr(found.studies, "RESULTS", tmp_path)
    return found


def publish(folder: Path, gains: dict[str, float], spread: float = 0.1, status: str = "finished") -> None:
    """`none` and methods that gain so many points; the gain varies with the seed, and differently in each folder."""
    folder.mkdir(exist_ok=True)
    draw = random.Random(folder.name)
    lines = ["method,seed,part,status,test_accuracy"]
    for order, (label, gain) in enumerate({"none": 0.0, **gains}.items()):
        for seed in SEEDS:
            noise = spread * draw.gauss(0, 1) if order else 0.0
            base = 60 + seed % 5  # common to all methods of a seed
            lines.append(f'"{label}",{seed},runs,{status},{(base + gain + noise) / 100}')
    (folder / "results.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def publish_all(claim: Any, half: float, fifth: float, tenth: float, noisy: float, **options: Any) -> None:
    root = claim.studies.RESULTS
    for name, gain in (("half", half), ("fifth", fifth), ("tenth", tenth)):
        publish(root / FOLDERS[name], dict.fromkeys(claim.METHODS, gain), **options)
    publish(root / FOLDERS["noisy"], {claim.METHODS[-1]: noisy}, **options)


def test_gains_that_grow_with_less_data_and_with_noise_reproduce_it(claim: Any) -> None:
    publish_all(claim, 0.5, 1.5, 3.0, 5.0)
    found = claim.judged()
    assert found.verdict == "reproduced"
    limited, *_, noisy = found.found.split("; ")
    assert limited.startswith("`hard(p=0.2,k=5)` +0.5 / +1.5 / +3.0 points at 50 / 20 / 10 % of the images")
    assert "the growth is +2.5 [+2." in limited
    assert noisy.startswith(f"with 40 % wrong labels, the gain of `{claim.METHODS[-1]}` grows by +3.")
    assert found.found.count(";") == 3  # only one method ran with wrong labels


@pytest.mark.parametrize(
    ("half", "tenth", "noisy", "verdict"),
    [(3.0, 3.0, 1.5, "not reproduced"), (3.0, 0.5, 0.0, "not reproduced"), (0.5, 3.0, 1.5, "reproduced in part")],
)
def test_gains_that_do_not_grow_are_a_failure(
    claim: Any, half: float, tenth: float, noisy: float, verdict: str
) -> None:
    """The gain at 20 % has no weight, only the two ends have."""
    publish_all(claim, half, 1.5, tenth, noisy)
    assert claim.judged().verdict == verdict


def test_growth_that_could_be_chance_is_a_failure(claim: Any) -> None:
    publish_all(claim, 1.0, 1.0, 1.1, 1.1, spread=1.0)
    assert claim.judged().verdict == "not reproduced"


def test_all_tests_are_one_family(claim: Any) -> None:
    publish_all(claim, 0.5, 1.5, 3.0, 5.0, spread=0.5)
    limited = [claim._difference(label, claim.HALF, claim.TENTH) for label in claim.METHODS]
    noisy = claim._difference(claim.METHODS[-1], claim.SCARCE, claim.NOISY)
    (alone,), (*_, together) = claim.corrected([noisy]), claim.corrected([*limited, noisy])
    assert together.holm_interval.text(1) != alone.holm_interval.text(1)
    assert claim.judged().found.endswith(together.holm_interval.text(1))


def test_a_method_whose_runs_all_failed_is_said_and_not_judged(claim: Any) -> None:
    publish_all(claim, 0.5, 1.5, 3.0, 5.0)
    path = claim.studies.RESULTS / FOLDERS["half"] / "results.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    failed = [line.replace("finished", "diverged") if line.startswith('"hard(') else line for line in lines]
    path.write_text("\n".join(failed) + "\n", encoding="utf-8")
    found = claim.judged()
    assert found.found.startswith("`hard(p=0.2,k=5)` - / +1.5 / +3.0 points")
    assert "of the images: the growth is not measured; `blur(" in found.found and found.verdict == "reproduced in part"


def test_it_waits_until_all_studies_are_complete(claim: Any) -> None:
    publish_all(claim, 0.5, 1.5, 3.0, 5.0)
    publish(claim.studies.RESULTS / FOLDERS["half"], dict.fromkeys(claim.METHODS, 1.0), status="missing")
    (claim.studies.RESULTS / FOLDERS["tenth"] / "results.csv").unlink()
    found = claim.judged()
    assert found.verdict == "not measured"
    assert found.found.endswith(": `cifar10-20pct-tenth`, `cifar10-half`")


@pytest.mark.parametrize("name", FOLDERS)
def test_it_needs_each_of_its_studies(claim: Any, name: str) -> None:
    publish_all(claim, 0.5, 1.5, 3.0, 5.0)
    (claim.studies.RESULTS / FOLDERS[name] / "results.csv").unlink()
    found = claim.judged()
    assert found.verdict == "not measured" and found.found.endswith(f": `{FOLDERS[name]}`")


def test_its_methods_are_those_of_the_recipes(claim: Any) -> None:
    """Otherwise it would find no runs. Both recipes compare the same methods."""
    from attentiondrop.experiments.config.recipe_files import read_recipe
    from attentiondrop.experiments.methods.grids import candidates

    methods = [
        read_recipe(*names).methods for names in (("evidence/cifar10-20pct", "tenth"), ("evidence/cifar10-half",))
    ]
    assert methods[0] == methods[1]
    labels = [candidates(text, 0, 0)[0] for text in methods[0]]
    assert {claim.BASELINE, *claim.METHODS, claim.studies.SEARCHED} <= set(labels)
