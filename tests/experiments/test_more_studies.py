"""A study of the queue is published by one command: its part of the page, and what other pages say, are there then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from .published import RESULTS

LONGER, OURS, CONTROL = "longer(times=2)", "blur(sigma_max=2.0)+consistency(weight=3.0)", "r-drop(weight=0.0,p=0.1)"
BASE = "dropout(p=0.1)+longer(lr=1.0,decay=1.0,times=1)"
TWICE, MASKED, R_DROP = (
    BASE.replace("times=1", "times=2"),
    f"{BASE}+hard(p=0.1,k=5)",
    BASE.replace("dropout", "r-drop"),
)
QUEUE = RESULTS.parent / "queue.yaml"


@pytest.fixture
def more(docs_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    found = docs_module("more_studies")
    monkeypatch.setattr(found.studies, "RESULTS", tmp_path)
    return found


def publish(
    one: Any, metric: str, gains: dict[str, float], seeds: int = 5, missing: int = 0, status: str = "finished"
) -> None:
    """A study with these differences to its first method, in the unit of the metric, as `evidence.py publish` does."""
    one.folder.mkdir(exist_ok=True)
    lines = [f"method,seed,part,status,test_{metric},validation_{metric},gpu_seconds"]
    for order, (label, gain) in enumerate(gains.items()):
        for seed in range(seeds):
            score = 0.7 + gain + 0.0005 * (seed * (order + 1) % 5)
            left = order == len(gains) - 1 and seed >= seeds - missing
            lines.append(f'"{label}",{seed},runs,' + ("missing,,," if left else f"{status},{score},{score},2.0"))
    (one.folder / "results.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    task = "language" if metric == "loss" else "classification"
    (one.folder / "recipe.yaml").write_text(yaml.safe_dump({"recipe": {"task": task}}), encoding="utf-8")


def part(more: Any, one: Any) -> str:
    return more.parts().partition(f"## {one.title}\n")[2].partition("\n## ")[0].strip()


def test_every_study_of_the_queue_has_a_place(more: Any, docs_module: Callable[[str], Any]) -> None:
    pages = {page.results.name for page in docs_module("study_pages").PAGES} | {one.name for one in more.STUDIES}
    no_table = {"cifar100-pretrained"}
    assert {one["name"] for one in yaml.safe_load(QUEUE.read_text(encoding="utf-8"))} <= pages | no_table


def test_nothing_is_said_of_what_has_not_begun(more: Any) -> None:
    one = more.of("transfer")
    assert part(more, one).endswith("State: not begun.") and more.states()["state of transfer"] == "not begun"
    assert more.written() == {} and more.overview().startswith("- No runs of these were published, so nothing is known")
    one.folder.mkdir()
    (one.folder / "results.csv").write_text("method,seed,part,status\nnone,1000,tuning,finished\n")
    assert part(more, one).endswith("State: trials have begun.") and one.link in more.overview()


def test_a_study_of_images_is_told(more: Any) -> None:
    one = more.of("transfer")
    publish(one, "accuracy", {"none": 0.0, LONGER: 0.04, CONTROL: 0.01, OURS: 0.02})
    said = part(more, one)
    assert "- The study is complete: all runs of 4 methods have ended." in said
    assert "- Better than `none`, after Holm's correction:" in said and "o regulariser was shown" not in said
    assert f"- Our methods to `{LONGER}`, corrected for all comparisons with it: `{OURS}` -2.0 points" in said
    assert "| GPU seconds of a run |" in said and "ECE" not in said  # which was not measured
    assert set(more.written()) == {one.folder / f"transfer-{kind}.svg" for kind in ("forest", "gpu-seconds")}
    assert all(f"(results/transfer/{path.name})" in said for path in more.written())
    first, rest = more.overview().splitlines()
    assert first.startswith(f"- {one.link} (all runs are done): better than `none`: `{OURS}` (+2.0 points [")
    assert "; the baseline with more epochs: +4.0 points [" in first and "less is better" not in first
    assert CONTROL not in first and one.link not in rest


def test_where_the_preset_is_better_than_more_epochs_is_known_to_the_front_page(more: Any) -> None:
    assert more.over_longer() == {}
    for name, gain in (("transfer", 0.04), ("cifar10-half", 0.01), ("cifar100-more", 0.04), ("cifar10-full", 0.0)):
        publish(more.of(name), "accuracy", {"none": 0, LONGER: 0.02, OURS: gain})
    found = more.over_longer()
    assert found.pop("Transfer from CIFAR-100").startswith(("+2.0 points [", "+1.9"))
    assert found == {"50 percent of CIFAR-10": None, "CIFAR-10 in full": None}
    publish(more.of("transfer"), "accuracy", {"none": 0, LONGER: 0.02, OURS: 0.04}, missing=1)
    assert set(more.over_longer()) == {"50 percent of CIFAR-10", "CIFAR-10 in full"}  # it is not complete
    publish(more.of("transfer"), "accuracy", {"none": 0, LONGER: 0.02})
    assert set(more.over_longer()) == {"50 percent of CIFAR-10", "CIFAR-10 in full"}  # it does not have the preset


def test_a_method_with_r_drop_in_it_is_compared_with_r_drop_alone(more: Any) -> None:
    one, alone = more.of("transfer"), "r-drop(weight=3.0,p=0.1)"
    publish(one, "accuracy", {"none": 0.0, CONTROL: 0.0, alone: 0.02, f"{alone}+blur(sigma_max=0.3)": 0.02})
    (line,) = (line for line in part(more, one).splitlines() if line.startswith("- Our methods to"))
    assert line.startswith(f"- Our methods to `{alone}`, corrected") and f": `{alone}+blur(sigma_max=0.3)` " in line
    assert "points [" in line and "+2.0" not in line


def test_more_seeds_alone_show_nothing(more: Any) -> None:
    one = more.of("cifar100-more")
    publish(one, "accuracy", {"none": 0.0, OURS: 0.02})
    said = part(more, one)
    assert "Better than" not in said and "all runs of 2 methods have ended" in said and "| method |" in said
    assert more.in_short(one).endswith(": only the [headline claims](claims.md#headline-claims) use them")


def test_a_lower_loss_is_better(more: Any) -> None:
    one = more.of("tinyshakespeare")
    publish(one, "loss", {BASE: 0.0, TWICE: -0.05, R_DROP: -0.03, MASKED: 0.02})
    said = part(more, one)
    better, worse = (
        next(line for line in said.splitlines() if line.startswith(f"- {start}")) for start in ("Better", "**Worse")
    )
    assert f"`{TWICE}` -0.0" in better and f"`{R_DROP}` -0.0" in better and "nats" in better and MASKED not in better
    assert f"`{MASKED}` +0.0" in worse
    short = more.in_short(one)
    assert short.startswith(f"{one.link} (all runs are done; less is better): better than")
    assert f"`{R_DROP}` (-0.0" in short and f"; worse: `{MASKED}` (+0.0" in short and f"`{TWICE}`" not in short


def test_what_is_not_complete_says_so(more: Any) -> None:
    one = more.of("transfer")
    publish(one, "accuracy", {"none": 0.0, LONGER: 0.04, OURS: -0.02}, missing=2)
    said = part(more, one)
    assert "- **The study is not complete**: 13 of 15 runs have ended, of 3 of 3 methods." in said
    assert "- **So far, no regulariser was shown to be better than `none`.**" in said
    assert "become stricter" not in said  # all methods share two seeds with `none` already
    assert "(13 of 15 runs are done): no regulariser was shown to be better than `none` so far; worse so far:" in (
        more.in_short(one)
    )
    publish(one, "accuracy", {"none": 0.0, LONGER: 0.04, OURS: -0.02}, missing=4)
    assert "become stricter" in part(more, one)


def test_causal_models_are_reported_when_they_are_done(more: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """P21. There is nothing to reproduce."""
    monkeypatch.setattr(more.translation, "in_short", lambda: "In translation, this.\n")
    more.of("tinyshakespeare").folder.parent.joinpath("multi30k-en-de").mkdir()
    (more.studies.RESULTS / "multi30k-en-de" / "results.csv").write_text("method,status\nnone,finished\n")
    for name in more.CAUSAL:
        assert more.causal_models().verdict == "not measured" and more.causal_models().found.endswith("`wikitext2`")
        publish(more.of(name), "loss", {BASE: 0.0, MASKED: 0.02}, missing=1)
        assert more.causal_models().verdict == "not measured"  # a run is missing
        publish(more.of(name), "loss", {BASE: 0.0, MASKED: 0.02})
    found = more.causal_models()
    assert found.verdict == "reported as a new result"
    assert found.found.startswith(
        "Cross-attention: In translation, this. Causal models: [tinyshakespeare by characters]"
    )
    assert found.found.count("no regulariser was shown to be better than") == 2
