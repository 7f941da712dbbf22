"""Texts of methods: their meaning, their canonical form, which are refused, and which settings tuning tries."""

from __future__ import annotations

import re

import pytest

from attentiondrop import AttentionDropError, BlurSmoothing, Compose, Consistency, HardMasking, OneOf, r_drop
from attentiondrop.experiments.methods import COMPARATORS, DropConnect, Dropout, DropPath, LabelSmoothing, RDrop
from attentiondrop.experiments.methods.grids import built_in_grids, candidates, check_grids
from attentiondrop.experiments.methods.parse import Method, read_method, read_methods
from attentiondrop.specs import REGISTRY

DEFAULTS = ("none", "dropout", "dropconnect", "r-drop", "hard", "blur", "blur+consistency")


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("none", Method()),
        (" none ", Method()),
        ("dropout", Method((Dropout(),))),
        ("dropout()", Method((Dropout(0.1),))),
        ("dropout( p = 0.25 )", Method((Dropout(0.25),))),
        ("dropout(p=1e-1)", Method((Dropout(0.1),))),
        ("dropout(p=1e+0)", Method((Dropout(1.0),))),
        ("dropconnect(p=0.3)", Method((DropConnect(0.3),))),
        ("r-drop(weight=2.0)", Method((RDrop(2.0, 0.1),))),
        ("droppath+labelsmoothing", Method((DropPath(), LabelSmoothing()))),
        ("hard", Method((), HardMasking())),
        ("blur(sigma_max=1.0)", Method((), BlurSmoothing(sigma_max=1.0))),
        ("hard+blur", Method((), Compose([HardMasking(), BlurSmoothing()]))),
        ("dropout(p=0.2)+hard", Method((Dropout(0.2),), HardMasking())),
        ("hard + dropout", Method((Dropout(),), HardMasking())),
        ("dropout+hard+consistency", Method((Dropout(),), Compose([HardMasking(), Consistency()]))),
        ("oneof(hard,blur)", Method((), OneOf([HardMasking(), BlurSmoothing()]))),
    ],
)
def test_reads_a_method_and_its_canonical_text(text: str, method: Method) -> None:
    assert read_method(text) == method
    assert read_method(method.text) == method


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hrad", "unknown method 'hrad' in 'hrad': expected none, dropout, droppath, dropconnect, r-drop"),
        ("", "unknown method ''"),
        ("hard+", "unknown method ''"),
        ("dropout+nope(p=1)", "unknown method 'nope'"),
        ("none+hard", "'none' cannot be joined"),
        ("none(p=1)", "method 'none(p=1)': 'none' takes no arguments"),
        ("dropout+dropout(p=0.2)", "dropout is given twice"),
        ("dropout(q=0.2)", "dropout has the fields p, found 'dropout(q=0.2)'"),
        ("dropout(p=lots)", "p: expected a number in [0, 1], received 'lots'"),
        ("dropout(p=2e+0)", "p: expected a number in [0, 1], received 2.0"),
        ("hard(p=2)", "p: expected a number in [0, 1]"),
        ("hard(p=0.1", "cannot read spec"),
        ("dropout(p=0.1", "cannot read"),
        ("consistency", "a consistency loss alone compares equal passes"),
        ("r-drop+blur+consistency", "expected at most one consistency loss, found 2"),
        ("r-drop+dropout", "the same rate of the model is set twice"),
    ],
)
def test_refuses_with_a_clear_message(text: str, message: str) -> None:
    with pytest.raises(AttentionDropError) as caught:
        read_method(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_method_is_made_of() -> None:
    method = read_method("dropout(p=0.3)+labelsmoothing(epsilon=0.2)+hard+noise+consistency(weight=0.2)")
    assert method.model_rates() == {"dropout": 0.3}
    assert method.label_smoothing == 0.2
    assert method.consistency == Consistency(weight=0.2)
    assert str(method.attached) == "hard(p=0.1,k=5)+noise(sigma=0.1)"
    assert read_method("r-drop(weight=3.0)").consistency == r_drop(3.0)
    assert read_method("none").consistency is None
    assert read_method("none").label_smoothing is None


def test_a_method_given_twice_is_an_error() -> None:
    with pytest.raises(AttentionDropError, match="given twice"):
        read_methods(["hard", "hard(p=0.1,k=5)"])
    with pytest.raises(AttentionDropError, match="at least one method"):
        read_methods([])


def test_folder_names_are_plain_short_and_unique() -> None:
    texts = [
        *DEFAULTS,
        "dropout+hard",
        "hard(fill=-inf)",
        "oneof(hard,blur)+noise",
        "oneof(hard,blur+noise)",
        "+".join(f"hard(p=0.1,k={k})" for k in range(1, 30)),
        "+".join(f"hard(p=0.1,k={k})" for k in range(1, 31)),
    ]
    slugs = [read_method(text).slug for text in texts]
    assert len(set(slugs)) == len(texts)
    assert all(re.fullmatch(r"[\w.=+-]{1,120}", slug) for slug in slugs)
    assert slugs[7] == "dropout_p=0.1+hard_p=0.1_k=5"


def test_every_regulariser_and_spec_has_a_grid_with_its_default_in_reach() -> None:
    leaves = [name for name, cls in REGISTRY.items() if cls.level != "container"]
    assert set(built_in_grids()) == {*COMPARATORS, *leaves}
    check_grids(built_in_grids(), "grids")


class TestCandidates:
    def test_defaults_first_then_points_of_the_grid_without_repetition(self) -> None:
        found = candidates("hard+consistency", trials=30, seed=3)
        assert found[0] == "hard(p=0.1,k=5)+consistency(weight=0.5)"
        assert len(set(found)) == 30
        assert found == candidates("hard+consistency", trials=30, seed=3)
        assert found != candidates("hard+consistency", trials=30, seed=4)

    def test_what_is_given_stays(self) -> None:
        assert all("p=0.33" in method for method in candidates("hard(p=0.33)", trials=6, seed=0))

    def test_a_small_grid_is_tried_whole_and_none_has_nothing_to_tune(self) -> None:
        assert sorted(candidates("dropout", trials=99, seed=0)) == [f"dropout(p={p})" for p in (0.05, 0.1, 0.2, 0.3)]
        assert candidates("none", trials=99, seed=0) == ["none"]
        assert candidates("blur", trials=0, seed=0) == ["blur(sigma_max=0.5)"]

    def test_grids_of_the_recipe_count(self) -> None:
        assert candidates("dropout", trials=9, seed=0, grids={"dropout": {"p": [0.4]}}) == [
            "dropout(p=0.1)",
            "dropout(p=0.4)",
        ]

    def test_parts_that_cannot_be_tuned_are_refused_or_kept(self) -> None:
        with pytest.raises(AttentionDropError, match="cannot be tuned: oneof"):
            candidates("oneof(hard,blur)", trials=2, seed=0)
        found = candidates("oneof(hard,blur)+dropout", 2, 0, {"oneof": {}})
        assert found[1].startswith("dropout(p=0.") and "oneof(" in found[1]

    @pytest.mark.parametrize(
        ("grids", "message"),
        [
            ({"dropout": [0.1]}, "grids.dropout: expected a mapping from fields to lists of values"),
            ({"dropout": {"p": 0.1}}, "grids.dropout: expected a mapping from fields to lists of values"),
            ({"dropout": {"p": [7]}}, "p: expected a number in [0, 1], received 7"),
            ({"hard": {"kk": [7]}}, "unknown field"),
            ({"drop": {"p": [0.1]}}, "unknown method 'drop'"),
        ],
    )
    def test_a_wrong_grid_is_refused(self, grids, message: str) -> None:
        with pytest.raises(AttentionDropError) as caught:
            check_grids(grids, "grids")
        assert message in str(caught.value)
