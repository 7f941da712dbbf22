"""Grids are checked without advice about their values; which of their settings are tried."""

from __future__ import annotations

import pytest

import attentiondrop as ad
from attentiondrop import errors
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.methods.grids import candidates, check_grids, grid_methods
from attentiondrop.experiments.studies.compare import _trials


def test_checking_a_grid_gives_no_advice_and_takes_none_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    check_grids({"hard": {"p": [0.1, 0.9]}}, "ablations")  # a warning would be an error in the tests
    with pytest.warns(errors.AttentionDropWarning, match="0.9 is legal"):
        ad.HardMasking(p=0.9)


def test_drawn_settings_begin_with_the_start_and_reach_the_highest_rates() -> None:
    listed, drawn = (candidates("r-drop", 6, 1000, draw=draw) for draw in (False, True))
    assert drawn[0] == listed[0] and sorted(drawn) == sorted(listed) and drawn != listed
    assert candidates("r-drop", 3, 1000, draw=True) == drawn[:3] and listed[-1] in drawn[:3]
    assert candidates("r-drop", 6, 1, draw=True) != drawn
    # Methods of several parts draw anyway.
    both = "blur+consistency"
    assert candidates(both, 4, 1000, draw=True) == candidates(both, 4, 1000)


def test_the_trials_of_a_recipe_are_drawn_if_it_says_so() -> None:
    found = {
        draw: _trials(read_recipe("digits", None, ["tuning.trials=3", f"tuning.draw={draw}"]), ["none", "dropout"])
        for draw in (False, True)
    }
    assert found[False]["dropout"] == candidates("dropout", 3, 1000) != found[True]["dropout"]


@pytest.mark.parametrize(
    "text",
    [
        "hard(p=0.1,k=5,fill=-inf)",
        "r-drop(weight=3.0,p=0.1)+hard(p=0.1,k=5,fill=-inf)",
        "r-drop(weight=0.0,p=0.1)",
        "dropkey(p=0.1,by=column)",
    ],
)
def test_fields_that_are_given_are_not_varied_if_they_equal_the_defaults(text: str) -> None:
    assert candidates(text, trials=3, seed=1000, draw=True) == [text]
    assert len(candidates("hard(fill=-inf)", trials=3, seed=1000)) == 3


@pytest.mark.parametrize("values", [[0.1, 0.1], [0.1, 0.2, 0.10], ["0.1", "1e-1"]])
def test_a_grid_with_the_same_setting_twice_is_refused(values: list[float | str]) -> None:
    with pytest.raises(
        ad.AttentionDropError, match=r"grid of hard: .* received p=0\.1,.*: hard\(p=0\.1,k=5\) is there"
    ):
        grid_methods("hard", {(0, "p"): values})
    with pytest.raises(ad.AttentionDropError, match=r"received p=.* k=3: hard\(p=0\.1,k=3\) is there twice"):
        grid_methods("hard", {(0, "p"): values, (0, "k"): [3]})
    assert grid_methods("hard", {(0, "p"): [0.1, 0.2]}) == ["hard(p=0.1,k=5)", "hard(p=0.2,k=5)"]


@pytest.mark.parametrize("key", ["hard(fill=-inf)", "hard( fill = -inf )"])
@pytest.mark.parametrize("grid", [{"p": [0.3]}, [{}, {"p": 0.3}]])
def test_a_grid_of_the_recipe_may_be_for_a_part_with_fields(key: str, grid: object) -> None:
    own = ["hard(p=0.1,k=5,fill=-inf)", "hard(p=0.3,k=5,fill=-inf)"]
    assert candidates("hard(fill=-inf)", 2, 0, {key: grid}, points=2) == own
    joined = candidates("dropout(p=0.2)+hard(fill=-inf)", 2, 0, {key: grid}, points=2)
    assert joined == [f"dropout(p=0.2)+{text}" for text in own]
    for others in ("hard", "hard(fill=-inf,k=3)"):
        assert candidates(others, 2, 0, {key: grid}, points=2) == candidates(others, 2, 0, points=2)


def test_a_grid_for_a_consistency_with_fields_counts() -> None:
    text, grids = "hard(p=0.2,k=5)+consistency(views=3)", {"consistency(views=3)": {"weight": [0.7]}}
    assert "weight=0.7,views=3" in candidates(text, 2, 0, grids, points=2)[1]


def test_a_grid_for_several_parts_is_refused() -> None:
    with pytest.raises(ad.AttentionDropError, match=r"tuning\.grids: expected one part .* received 'blur\+hard'"):
        read_recipe("digits", None, ["tuning.grids={blur+hard: {sigma_max: [0.2]}}"])
    assert read_recipe("digits", None, ["ablations={blur+hard: {sigma_max: [0.2]}}"]).ablations
