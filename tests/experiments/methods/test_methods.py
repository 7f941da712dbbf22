"""Texts of methods: their meaning, their canonical form, which are refused, and which settings tuning tries."""

from __future__ import annotations

import re

import pytest

from attentiondrop import AttentionDropError, BlurSmoothing, Compose, Consistency, HardMasking, OneOf, r_drop
from attentiondrop.experiments.config.schema import TrainingSettings
from attentiondrop.experiments.methods import COMPARATORS, DropConnect, Dropout, DropPath, LabelSmoothing, RDrop
from attentiondrop.experiments.methods.grids import built_in_grids, candidates, check_grids
from attentiondrop.experiments.methods.groups import ALL, expanded, groups
from attentiondrop.experiments.methods.parse import Method, read_method, read_methods, terms
from attentiondrop.specs import REGISTRY
from attentiondrop.unknown_names import OF_EXPERIMENTS

DEFAULTS = ("none", "dropout", "dropconnect", "r-drop", "hard", "blur", "blur+consistency")


def test_the_errors_of_specs_know_every_comparator() -> None:
    """`attach` refuses these names, and says where they belong."""
    assert set(OF_EXPERIMENTS) == set(COMPARATORS)


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
        (
            "hrad",
            "unknown method 'hrad' in 'hrad': did you mean 'hard'? `attentiondrop methods` lists all",
        ),
        ("zzz", "unknown method 'zzz' in 'zzz': `attentiondrop methods` lists all"),
        ("", "unknown method ''"),
        ("none hard", "method 'none hard': expected one method; give each as a word of its own, or join them with '+'"),
        ("hard(p=0.1) blur", "expected one method; give each"),
        ("hard+", "unknown method ''"),
        ("dropout+nope(p=1)", "unknown method 'nope'"),
        ("none+hard", "'none' cannot be joined"),
        ("none(p=1)", "method 'none(p=1)': none has the fields lr, decay, found 'none(p=1)'"),
        ("none(lr=0)", "lr: expected a number > 0, received 0"),
        ("topk+window", "expected at most one of window and topk"),
        ("dropout+dropout(p=0.2)", "dropout is given twice"),
        ("dropout(q=0.2)", "dropout has the fields p, found 'dropout(q=0.2)'"),
        ("dropout(p=lots)", "p: expected a number in [0, 1], received 'lots'"),
        ("dropout(p=2e+0)", "p: expected a number in [0, 1], received 2.0"),
        ("hard(p=2)", "p: expected a number in [0, 1]"),
        ("hard(p=0.1", "method 'hard(p=0.1': brackets do not match; in a YAML list, quote a method that has commas"),
        ("dropout(p=0.1", "brackets do not match"),
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


def test_parts_that_replace_one_setting_are_no_method_to_train() -> None:
    """But records of older versions, which did not refuse them, can be read."""
    message = r"expected at most one of longer and shorter, since each replaces training\.epochs"
    for text in ("longer+shorter", "shorter+longer(lr=0.5,times=1)+hard"):
        with pytest.raises(AttentionDropError, match=message):
            read_methods(["none", text])
        with pytest.raises(AttentionDropError, match=message):
            read_method(text).training(TrainingSettings())
    with pytest.raises(AttentionDropError, match=r"at most one of none and longer, .* training\.learning_rate"):
        Method((COMPARATORS["none"](lr=0.5), COMPARATORS["longer"]())).check_replaced()


def test_where_consistency_stands_makes_no_other_method() -> None:
    with pytest.raises(AttentionDropError, match=r"'consistency\+blur' is given twice: it means blur"):
        read_methods(["blur+consistency", "consistency+blur"])
    read_methods(["blur+hard+consistency", "hard+blur+consistency"])  # which of these comes first matters


def test_parts_that_replace_different_settings_are_joined() -> None:
    settings = read_method("longer(lr=0.5)+tailblur").training(TrainingSettings(learning_rate=0.1, epochs=3))
    assert (settings.learning_rate, settings.epochs, settings.consistency_mode) == (0.05, 6, "shared")


def test_a_number_of_yaml_is_the_method_that_a_group_has() -> None:
    for text in ("r-drop(weight=0)", "r-drop(weight=0.0,p=0.1)"):
        found = expanded(["none", text, "controls"])
        assert found == ["none", text, *(each for each in found[2:] if not each.startswith("r-drop"))]
        assert len(read_methods(found)) == len(found)


def test_a_method_given_twice_is_an_error() -> None:
    with pytest.raises(AttentionDropError, match="given twice"):
        read_methods(["hard", "hard(p=0.1,k=5)"])
    with pytest.raises(AttentionDropError, match="at least one method"):
        read_methods([])


class TestGroups:
    def test_a_group_first_brings_its_baseline_and_repeats_nothing(self) -> None:
        assert expanded(["weights"]) == ["none", *groups()["weights"]]
        assert expanded(["weights", "dropconnect(p=0.1)", "hard"])[1:] == ["headpruning", "dropconnect(p=0.1)", "hard"]
        assert expanded(["hard", "weights", "weights"]) == ["hard", *groups()["weights"]]
        assert expanded(["none", "weights"]) == expanded(["weights", "none"]) == expanded(["weights"])

    def test_texts_without_a_group_stay_as_they_are(self) -> None:
        assert expanded(["hard", "none", "none"]) == ["hard", "none", "none"]

    def test_every_comparator_and_every_spec_is_in_all_but_those_that_are_parts_of_others(self) -> None:
        names = {term.name for text in groups()[ALL] for term in terms(text)}
        specs = {name for name, cls in REGISTRY.items() if cls.level != "container"}
        assert names == {*COMPARATORS, *specs} - {"shorter"}
        assert len(read_methods(expanded([ALL]))) == len(groups()[ALL])
        assert groups()[ALL][0] == "none"


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
    def test_the_default_first_then_what_the_method_lists_in_order(self) -> None:
        assert candidates("dropout", 6, 0) == [f"dropout(p={p})" for p in (0.1, 0.05, 0.2, 0.3, 0.4, 0.5)]
        assert candidates("dropout", 3, 0) == candidates("dropout", 6, 0)[:3]
        assert candidates("dropout", 0, 0) == ["dropout(p=0.1)"]

    def test_none_spends_its_trials_on_learning_rate_and_weight_decay(self) -> None:
        found = candidates("none", 6, 0)
        assert found[0] == "none" and len(set(found)) == 6
        read = [read_method(text) for text in found]
        settings = [method.training(TrainingSettings(learning_rate=0.1, weight_decay=1.0)) for method in read]
        assert settings[0] == TrainingSettings(learning_rate=0.1, weight_decay=1.0)
        assert {one.learning_rate for one in settings} == {0.1, 0.05, 0.2}
        assert {one.weight_decay for one in settings} == {1.0, 0.2, 5.0}

    def test_of_several_parts_combinations_are_drawn(self) -> None:
        found = candidates("dropout+labelsmoothing", trials=20, seed=3, points=20)
        assert found[0] == "dropout(p=0.1)+labelsmoothing(epsilon=0.1)"
        assert len(set(found)) == 20
        assert found == candidates("dropout+labelsmoothing", 20, 3, points=20)
        assert found != candidates("dropout+labelsmoothing", 20, 4, points=20)

    def test_what_is_given_stays_and_may_leave_fewer(self) -> None:
        assert candidates("mixup(p=0.5)", 6, 0) == [f"mixup(alpha={a},p=0.5)" for a in (1.0, 0.2, 0.4, 0.8, 2.0)]
        assert candidates("longer(times=3)", 6, 0)[1] == "longer(lr=0.5,decay=1.0,times=3)"
        assert len(candidates("longer(times=3)", 6, 0)) == 6

    @pytest.mark.parametrize("text", groups()[ALL])
    def test_every_method_lists_six(self, text: str) -> None:
        found = candidates(text, 6, 1000)
        assert len(set(found)) == 6 and read_method(text).text in found
        for one in found:
            assert read_method(one).text == one

    def test_fewer_than_asked_for_is_an_error_that_says_how_many_there_are(self) -> None:
        with pytest.raises(AttentionDropError, match=r"'dropout' lists 6 settings: expected 7, as tuning\.points says"):
            candidates("dropout", 2, 0, points=7)
        with pytest.raises(AttentionDropError, match="'dropout' lists 2 settings: expected 6"):
            candidates("dropout", 2, 0, grids={"dropout": {"p": [0.4]}})

    def test_grids_of_the_recipe_count_in_both_forms(self) -> None:
        for grid in ({"p": [0.4]}, [{}, {"p": 0.4}]):
            assert candidates("dropout", 2, 0, {"dropout": grid}, points=2) == ["dropout(p=0.1)", "dropout(p=0.4)"]

    def test_an_integer_in_a_grid_is_the_default_and_not_tried_twice(self) -> None:
        for values in ([1, 2], [1.0, 2.0]):
            grids = {"r-drop": {"weight": values}}
            assert candidates("r-drop", 2, 0, grids, points=2) == [f"r-drop(weight={w},p=0.1)" for w in (1.0, 2.0)]

    def test_parts_that_cannot_be_tuned_are_refused_or_kept(self) -> None:
        with pytest.raises(AttentionDropError, match="cannot be tuned: oneof"):
            candidates("oneof(hard,blur)", trials=2, seed=0)
        found = candidates("oneof(hard,blur)+dropout", 2, 0, {"oneof": {}}, points=2)
        assert found[1].startswith("dropout(p=0.") and "oneof(" in found[1]

    @pytest.mark.parametrize(
        ("grids", "message"),
        [
            (
                {"dropout": [0.1]},
                "grids.dropout: expected a mapping from fields to lists of values, or a list of settings",
            ),
            (
                {"dropout": {"p": 0.1}},
                "grids.dropout: expected a mapping from fields to lists of values, or a list of settings",
            ),
            ({"dropout": {"p": [7]}}, "p: expected a number in [0, 1], received 7"),
            ({"hard": {"kk": [7]}}, "unknown field"),
            ({"drop": {"p": [0.1]}}, "unknown method 'drop'"),
            ({"r-drop": [{"p": 0.1, "weight": -1.0}]}, "grids.r-drop.p, weight: method 'r-drop"),
        ],
    )
    def test_a_wrong_grid_is_refused(self, grids, message: str) -> None:
        with pytest.raises(AttentionDropError) as caught:
            check_grids(grids, "grids")
        assert message in str(caught.value)
