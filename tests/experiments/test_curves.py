"""Claims P12 and P13, judged by the epochs of the confirming runs."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
LABELS = {
    "none": "none",
    "hard": "hard(p=0.2,k=5)",
    "blur": "blur(sigma_max=0.5)",
    "blur+consistency": "blur(sigma_max=2.0)+consistency(weight=1.0)",
}
#: Seed -> accuracies of validated epochs 10, 20, ...
Accuracies = Callable[[int], list[float]]


@pytest.fixture
def curves(docs_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    found = docs_module("curves")
    monkeypatch.setattr(found, "RECORDS", tmp_path / "records.tar.gz")
    found.read.cache_clear()
    return found


def lines(accuracies: list[float], loss: Callable[[int], float]) -> str:
    """A metrics.jsonl with validation in every tenth epoch."""
    found = []
    for epoch in range(1, 10 * len(accuracies) + 1):
        judged = None if epoch % 10 else {"accuracy": accuracies[epoch // 10 - 1]}
        found.append(json.dumps({"epoch": epoch, "train_loss": loss(epoch), "validation": judged}))
    return "\n".join(found) + "\n"


def add(archive: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(text)
    archive.addfile(info, io.BytesIO(text.encode()))


def pack(
    curves: Any,
    methods: dict[str, Accuracies],
    losses: dict[str, Callable[[int, int], float]] | None = None,
    seeds: int = 10,
    failed: tuple[str, int] | None = None,
) -> None:
    """Records of these methods. `losses`: of a seed and an epoch. An epoch takes a second, two with a consistency loss."""
    costs = {LABELS[name]: {"seconds": 0.5 if name == "blur+consistency" else 0.25} for name in methods}
    with tarfile.open(curves.RECORDS, "w:gz") as archive:
        add(archive, "costs.json", json.dumps(costs))
        for name, accuracies in methods.items():
            for seed in range(seeds):
                status = "diverged" if (name, seed) == failed else "finished"
                loss = (losses or {}).get(name, lambda seed, epoch: 1.0)
                files = {
                    "run.json": json.dumps({"method": LABELS[name], "seed": seed}),
                    "metrics.jsonl": lines(accuracies(seed), lambda epoch, seed=seed, loss=loss: loss(seed, epoch)),
                    "result.json": json.dumps({"status": status, "steps": 240, "epochs": 60}),
                }
                for file, text in files.items():
                    add(archive, f"runs/{name}/seed{seed}/{file}", text)
    curves.read.cache_clear()


def steps(*first: int) -> Accuracies:
    """Runs of 6 validated epochs that end at 0.8 and are at 0.76 or above from validation number `first` on."""
    return lambda seed: [0.5 if number < first[seed % len(first)] else 0.8 for number in range(6)]


def test_epochs_until_a_level_is_reached(curves: Any) -> None:
    run = curves.curve([json.loads(line) for line in lines([0.4, 0.6, 0.5, 0.7], lambda epoch: 1.0).splitlines()], 1)
    assert run.accuracy == {10: 0.4, 20: 0.6, 30: 0.5, 40: 0.7} and run.end == 40
    found = [(curves.first_validated(run, x), curves.interpolated(run, x)) for x in (0.3, 0.4, 0.55, 0.6, 0.65, 0.71)]
    assert found[:2] == [(10, 10), (10, 10)] and found[3] == (20, pytest.approx(20)) and found[5] == (None, None)
    assert found[2] == (20, pytest.approx(17.5)) and found[4] == (40, pytest.approx(37.5))


def test_the_level_is_95_percent_of_where_none_ends_with_the_same_seed(curves: Any) -> None:
    """The best epoch of `none` (0.9) and the end of the other seed (0.4 and 0.8) do not count."""
    none = {0: curves.Curve({10: 0.9, 20: 0.4}, {20: 1.0}, 1), 1: curves.Curve({10: 0.2, 20: 0.8}, {20: 1.0}, 1)}
    ours = {
        seed: curves.Curve({10: 0.37, 20: 0.381, 30: 0.75, 40: 0.761}, {40: 1.0}, 1) for seed in (0, 1, 2)
    }  # `none` has no seed 2
    assert curves.epochs_needed(ours, none, curves.first_validated) == {0: 20, 1: 40}


def judged(curves: Any) -> dict[str, Any]:
    return {each.name: each for each in curves.convergence(LABELS)}


def test_convergence_is_faster_if_the_corrected_interval_is_below_zero(curves: Any) -> None:
    pack(
        curves,
        {"none": steps(3, 4), "hard": steps(4, 5, 3), "blur": steps(3, 4, 4), "blur+consistency": steps(1, 2, 2)},
    )
    found = judged(curves)
    verdicts = {name: each.verdict for name, each in found.items()}
    assert verdicts == {"hard": "not reproduced", "blur": "not reproduced", "blur+consistency": "reproduced"}
    each = found["blur+consistency"]
    # Seeds 0 to 9: `none` 40, 50, 40, ...; ours 20, 30, 30, 20, ...
    ours = {seed: 20 if seed % 3 == 0 else 30 for seed in range(10)}
    theirs = {seed: 50 if seed % 2 else 40 for seed in range(10)}
    assert (each.ours, each.theirs) == (ours, theirs) and each.epochs.mean == pytest.approx(26 - 45)
    assert each.seconds.mean == pytest.approx(2 * 26 - 45)
    assert found["blur"].seconds.mean == found["blur"].epochs.mean
    row = each.row()
    assert row[:4] == ["`blur+consistency` - `none`", "10", "45.0", "26.0"] and row[7] == "reproduced"
    assert row[4].startswith("-19.0 [") and row[6].startswith("+7.0 [")


def test_both_runs_of_a_pair_are_interpolated(curves: Any) -> None:
    """The level is 0.76. `none` rises from 0.56 to 0.8 (8.33 of ten epochs), `hard` from 0.66 to 0.86 (5 of ten)."""
    none: Accuracies = lambda seed: [0.4, 0.56, 0.8] if seed % 2 else [0.56, 0.8, 0.8]  # noqa: E731
    pack(curves, {"none": none, "hard": lambda seed: [0.66, 0.86, 0.8]})
    found = judged(curves)["hard"]
    assert found.epochs.mean == pytest.approx(20 - 25)
    assert found.smooth.mean == pytest.approx(15 - (18 + 1 / 3 + 28 + 1 / 3) / 2)


def test_three_comparisons_are_corrected_together(curves: Any) -> None:
    sooner = steps(4, 4, 3, 4)
    pack(curves, {"none": steps(4), "hard": sooner, "blur": sooner, "blur+consistency": sooner})
    found = judged(curves)["hard"].epochs
    alone = curves.paired_difference(judged(curves)["hard"].ours, judged(curves)["hard"].theirs)
    assert found.holm_interval.low < alone.interval.low and found.holm_p == pytest.approx(3 * alone.p_value)


def test_faster_alone_is_not_enough(curves: Any) -> None:
    """Four of ten seeds are sooner: the interval excludes zero alone, but not among three."""
    sooner = steps(*[3] * 4, *[4] * 6)
    pack(curves, {"none": steps(4), "hard": sooner, "blur": sooner, "blur+consistency": sooner})
    found = judged(curves)["hard"]
    assert found.epochs.interval.high < 0 and found.verdict == "not reproduced"


def test_a_slower_method_is_not_reproduced(curves: Any) -> None:
    pack(curves, {"none": steps(1, 2, 1), "hard": steps(4, 5), "blur": steps(1), "blur+consistency": steps(1)})
    assert judged(curves)["hard"].verdict == "not reproduced"


def test_runs_that_are_never_good_leave_a_comparison_open(curves: Any) -> None:
    never = lambda seed: [0.5] * 6 if seed == 3 else steps(1, 2)(seed)  # noqa: E731
    pack(curves, {"none": steps(3, 4), "hard": never, "blur": steps(1), "blur+consistency": steps(1)})
    found = judged(curves)["hard"]
    assert found.missing == 1 and found.row()[1] == "9"
    assert found.row()[-1] == "not resolved: 1 runs never get there"


def test_equal_differences_on_all_seeds_leave_a_comparison_open(curves: Any) -> None:
    """Nothing tells how much another seed would differ."""
    equal = curves.paired_difference(dict.fromkeys(range(10), 1.0), dict.fromkeys(range(10), 2.0))
    (found,) = curves.corrected([equal])
    assert curves.below_zero(found) == "not resolved" and curves.told(found, 1) == "-1.0 -"


def test_nothing_is_claimed_without_ten_finished_seeds(curves: Any) -> None:
    fast = {"none": steps(3, 4), "hard": steps(1), "blur": steps(1), "blur+consistency": steps(1)}
    losses = {"none": lambda seed, epoch: 2.0 + seed / 100}
    pack(curves, fast, losses)
    assert judged(curves)["hard"].verdict == curves.training_loss(LABELS).verdict == "reproduced"
    pack(curves, fast, losses, seeds=9)
    assert judged(curves)["hard"].verdict == curves.training_loss(LABELS).verdict == "not measured"
    pack(curves, fast, losses, failed=("hard", 4))
    assert judged(curves)["hard"].verdict == "not measured" and judged(curves)["blur"].verdict == "reproduced"
    for each in (*curves.convergence(dict.fromkeys(LABELS)), curves.training_loss(dict.fromkeys(LABELS))):
        assert each.verdict == each.row()[-1] == "not measured"
    curves.RECORDS.unlink()
    curves.read.cache_clear()
    assert judged(curves)["hard"].verdict == curves.training_loss(LABELS).verdict == "not measured"


def test_the_training_loss_with_its_kl_is_compared_in_the_last_epoch(curves: Any) -> None:
    accuracies = {"none": steps(3), "blur+consistency": steps(3)}

    def loss(at_end: float) -> dict[str, Callable[[int, int], float]]:
        """Blur begins above `none`, is below it from epoch 31 to the last but one, and ends somewhere."""
        return {
            "none": lambda seed, epoch: 1.0 + seed / 500,
            "blur+consistency": lambda seed, epoch: (
                1.5 if epoch <= 30 else 0.9 + seed % 2 / 500 if epoch < 60 else at_end + seed % 2 / 500
            ),
        }

    pack(curves, accuracies, loss(0.8))
    found = curves.training_loss(LABELS)
    assert found.verdict == "reproduced" and found.lower_from == 31
    assert found.row()[2:6] == ["1.009", "0.801", "-0.208 [-0.212, -0.204]", "epoch 31"]
    # Above `none` with its KL: the task loss might still be below it, which nobody wrote down.
    pack(curves, accuracies, loss(1.1))
    found = curves.training_loss(LABELS)
    assert found.verdict == "not resolved" and found.lower_from is None and found.row()[5] == "never"


def test_the_records_of_study_1(curves: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by hand from the records: the first validated epochs, and two of the last losses."""
    monkeypatch.setattr(curves, "RECORDS", EVIDENCE / "records" / "cifar10-20pct-confirm.tar.gz")
    known = curves.read(curves.RECORDS)
    assert len(known) == 13 and {len(runs) for runs in known.values()} == {10}
    found = judged(curves)
    assert list(found["hard"].theirs.values()) == [70, 70, 70, 80, 70, 70, 70, 60, 80, 80]
    assert list(found["hard"].ours.values()) == [70, 60, 60, 80, 70, 80, 70, 70, 70, 90]
    assert list(found["blur"].ours.values()) == [60, 70, 60, 80, 70, 70, 70, 60, 80, 70]
    assert list(found["blur+consistency"].ours.values()) == [50, 50, 60, 70, 60, 60, 60, 60, 70, 60]
    loss = curves.training_loss(LABELS)
    assert (round(loss.ours[100], 3), round(loss.theirs[100], 3)) == (1.130, 1.202)
