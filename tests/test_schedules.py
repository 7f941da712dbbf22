from __future__ import annotations

import json
import math

import pytest

import attentiondrop as ad
from attentiondrop import schedules as sc

ALL = [
    sc.Constant(0.1),
    sc.Linear(0.0, 0.2),
    sc.Cosine(0.2, 0.1),
    sc.Warmup(0.1, share=0.2),
    sc.Warmup(sc.Cosine(0.3, 0.1), share=0.5),
    sc.v_shape(0.2, turn=0.25),
    sc.Steps([0.0, 0.5], [0.0, 0.2]),
    sc.Depth(0.3, 0.0),
    sc.Depth(sc.Linear(0.0, 0.3), 0.0),
    sc.PerLayer([0.1, sc.Linear(0.0, 0.2)]),
    sc.PerHead([0.0, 0.1, sc.Warmup(0.2)]),
]


@pytest.mark.parametrize(
    "schedule, progress, expected",
    [
        (sc.Constant(0.1), 0.3, 0.1),
        (sc.Linear(0.1, 0.3), 0.0, 0.1),
        (sc.Linear(0.1, 0.3), 1.0, 0.3),
        (sc.Linear(0.0, 0.2), 0.25, 0.05),
        (sc.Cosine(0.0, 1.0), 0.5, 0.5),
        (sc.Cosine(0.0, 1.0), 1 / 3, 0.25),
        (sc.Warmup(0.1, share=0.2), 0.1, 0.05),
        (sc.Warmup(0.1, share=0.2), 0.2, 0.1),
        (sc.Warmup(0.1, share=0.0), 0.0, 0.1),
        (sc.Warmup(sc.Linear(0.0, 0.4), share=0.5), 0.25, 0.05),
        (sc.v_shape(0.2, turn=0.2), 0.0, 0.2),
        (sc.v_shape(0.2, turn=0.2), 0.2, 0.0),
        (sc.v_shape(0.2, turn=0.2), 0.6, 0.1),
        (sc.v_shape(0.2, turn=0.2), 1.0, 0.2),
        (sc.Piecewise([0.25, 0.75], [0.1, 0.3]), 0.0, 0.1),
        (sc.Piecewise([0.25, 0.75], [0.1, 0.3]), 0.5, 0.2),
        (sc.Piecewise([0.25, 0.75], [0.1, 0.3]), 0.9, 0.3),
        (sc.Steps([0.0, 0.5], [0.1, 0.2]), 0.4999, 0.1),
        (sc.Steps([0.0, 0.5], [0.1, 0.2]), 0.5, 0.2),
    ],
    ids=str,
)
def test_values(schedule: sc.Schedule, progress: float, expected: float) -> None:
    assert math.isclose(schedule.at(progress), expected, abs_tol=1e-15)


def test_the_ends_of_a_line_are_exact() -> None:
    """0.2 + (0.9 - 0.2) is not 0.9."""
    assert (sc.Linear(0.2, 0.9).at(0.0), sc.Linear(0.2, 0.9).at(1.0)) == (0.2, 0.9)


HEIGHTS = (0.1, 0.2, 0.4)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_no_value_lies_beyond_the_extremes(most: int) -> None:
    """Wherever the largest or smallest value of a schedule is, a new spec must check it."""
    a, b, c = (1.0 if place == most else height for place, height in enumerate(HEIGHTS))
    for schedule in [
        sc.Constant(a),
        sc.Linear(a, b),
        sc.Cosine(a, b),
        sc.Warmup(a),
        sc.Piecewise([0.0, 0.5, 1.0], [a, b, c]),
        sc.Steps([0.0, 0.25, 0.5], [a, b, c]),
        sc.VShape(a, b, turn=0.5),
        sc.Depth(a, b),
        sc.PerLayer([a, b, c]),
        sc.PerHead([a, b, c]),
    ]:
        found = [schedule.at(step / 4, layer, 3) for step in range(5) for layer in range(3)]
        values = [x for value in found for x in (value.values if isinstance(value, sc.PerHead) else [value])]
        assert (min(values), max(values)) == (min(schedule.extremes()), max(schedule.extremes())), schedule


@pytest.mark.parametrize(
    "make",
    [
        lambda inner: sc.Constant(inner),
        lambda inner: sc.Linear(inner, inner),
        lambda inner: sc.Cosine(inner, inner),
        lambda inner: sc.Warmup(inner, share=0.0),
        lambda inner: sc.Piecewise([0.0, 1.0], [inner, inner]),
        lambda inner: sc.Steps([0.0], [inner]),
        lambda inner: sc.VShape(inner, inner),
        lambda inner: sc.Depth(inner, inner),
        lambda inner: sc.PerLayer([inner] * 3),
    ],
)
def test_a_schedule_inside_another_one_knows_its_layer(make: object) -> None:
    schedule = make(sc.Depth(0.0, 0.4))
    assert [schedule.at(0.25, layer, 3) for layer in range(3)] == pytest.approx([0.0, 0.2, 0.4])


def test_layers_and_heads() -> None:
    assert [sc.Depth(0.2, 0.0).at(0.0, layer, 5) for layer in range(5)] == pytest.approx([0.2, 0.15, 0.1, 0.05, 0.0])
    assert sc.Depth(0.2, 0.0).at(0.0) == 0.2
    assert sc.PerLayer([0.1, sc.Linear(0.0, 0.2)]).at(1.0, layer=1, layers=2) == 0.2
    assert sc.PerHead([0.0, sc.Depth(0.0, 0.4)]).at(0.0, 1, 2) == sc.PerHead([0.0, 0.4])


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_texts_and_dictionaries_round_trip(schedule: sc.Schedule) -> None:
    spec = ad.HardMasking(p=schedule, k=3)
    assert ad.parse(str(spec)) == spec
    assert ad.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert hash(spec) == hash(ad.parse(str(spec)))
    both = ad.OneOf([ad.Compose([spec, ad.DropHead(schedule)]), ad.GaussianNoise(schedule)])
    assert ad.parse(str(both)) == both


def test_texts_may_leave_out_the_names_of_fields() -> None:
    for text, schedule in [
        ("depth(0.3,0.0)", sc.Depth(0.3, 0.0)),
        ("v_shape(0.2)", sc.VShape(0.2)),
        ("v_shape( 0.2 , turn = 0.3 )", sc.VShape(0.2, turn=0.3)),
        ("piecewise([0.0,1.0],[0.2,0.1])", sc.Piecewise([0.0, 1.0], [0.2, 0.1])),
        ("warmup(cosine(0.2,end=0.1),0.5)", sc.Warmup(sc.Cosine(0.2, 0.1), 0.5)),
        ("layers([0.1,linear(0,0.2)])", sc.PerLayer([0.1, sc.Linear(0.0, 0.2)])),
        ("entropy(0.7,high=0.4)", ad.EntropyTarget(0.7, high=0.4)),
    ]:
        spec = ad.parse(f"hard(p={text},k=3)")
        assert spec == ad.HardMasking(schedule, 3) and ad.parse(str(spec)) == spec


def test_the_schedules_of_papers() -> None:
    """DropKey's rate falls over the layers. Scheduled DropHead's falls to 0 and then rises over training."""
    falling = ad.parse("dropkey(p=depth(0.3,0.0))")
    rates = [falling.at(0.5, layer, 4).p for layer in range(4)]
    assert rates == pytest.approx([0.3, 0.2, 0.1, 0.0])
    scheduled = ad.parse("drophead(p=v_shape(0.2))")
    assert [scheduled.at(progress).p for progress in (0.0, 0.05, 0.1, 0.55, 1.0)] == pytest.approx(
        [0.2, 0.1, 0.0, 0.1, 0.2]
    )


def test_a_spec_is_evaluated_with_all_its_parts() -> None:
    spec = ad.parse(
        "blur(sigma_max=linear(start=0.2,end=1.0),sigma_min=0.1)+consistency(weight=warmup(to=0.5,share=0.5))"
    )
    assert spec.at(0.25) == ad.Compose([ad.BlurSmoothing(0.4, sigma_min=0.1), ad.Consistency(0.25)])
    assert ad.HardMasking().at(0.5) is not None
    choice = ad.OneOf([ad.DropKey(sc.Linear(0.0, 0.2)), ad.DropHead(0.1)], weights=[1, 3])
    assert choice.at(0.5) == ad.OneOf([ad.DropKey(0.1), ad.DropHead(0.1)], weights=[1, 3])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ad.HardMasking(p=sc.Linear(0.0, 1.5)), r"p: expected a number in \[0, 1\], received 1.5"),
        (lambda: ad.GaussianNoise(sc.PerHead([0.1, -0.1])), "sigma: expected a number >= 0, received -0.1"),
        (lambda: sc.Linear(0.0, "much"), "end: expected a number, received 'much'"),
        (lambda: sc.Cosine("little", 0.0), "start: expected a number, received 'little'"),
        (lambda: sc.Depth(0.2, float("nan")), "last: expected a number, received nan"),
        (lambda: sc.Piecewise([0.0, 1.2], [0.1, 0.2]), r"at_progress: expected rising numbers in \[0, 1\]"),
        (lambda: sc.Warmup(0.1, share=2), r"share: expected a number in \[0, 1\], received 2"),
        (lambda: sc.Steps([0.5, 0.2], [0.1, 0.2]), r"at_progress: expected rising numbers in \[0, 1\]"),
        (lambda: sc.Piecewise([0.0, 0.5, 0.5], [0.1, 0.2, 0.3]), r"at_progress: expected rising numbers in \[0, 1\]"),
        (lambda: sc.Steps([0.1], [0.1]), "at_progress: expected 0 as the first"),
        (lambda: sc.Piecewise([0.0, 1.0], [0.1]), "values: expected 2 values, one for each progress"),
        (lambda: sc.VShape(0.2, turn=1.0), "turn: expected a number above 0 and below 1, received 1.0"),
        (lambda: sc.PerLayer([]), "values: expected a list of numbers or schedules"),
        (lambda: sc.PerLayer([0.1, 0.2]).at(0.0, 0, 3), "values: expected 3 values, one for each attached layer"),
        (lambda: sc.PerLayer([0.1, 0.2]).at(0.0), "values: expected 1 values, one for each attached layer"),
        (lambda: sc.Linear(0.0, sc.PerHead([0.1])).at(0.5), r"expected heads\(...\) outside of other schedules"),
        (lambda: sc.PerHead([0.1, sc.PerHead([0.2])]).at(0.0), r"values: expected one level of heads\(...\)"),
        (lambda: sc.Warmup(ad.EntropyTarget(0.6)), r"to: expected .* entropy\(...\) must be a whole rate"),
        (lambda: sc.Constant(ad.Learnable(0.1)), r"value: expected .* learnable\(...\) must be a whole rate"),
        (lambda: sc.PerLayer([0.1, ad.Learnable(0.1)]), r"values: expected .* learnable\(...\) must be a whole rate"),
        (lambda: ad.Consistency(ad.EntropyTarget(0.6)), "weight: expected a number or a schedule over training"),
        (lambda: ad.Consistency(sc.PerHead([0.1])), "weight: expected a number or a schedule over training"),
        (lambda: ad.Consistency(sc.Warmup(sc.Depth(0.1, 0.2))), "weight: expected a number or a schedule over training"),
        (lambda: ad.HardMasking().at(1.5), r"progress: expected a number in \[0, 1\], received 1.5"),
        (lambda: ad.BlurSmoothing(sc.Linear(0.5, 0.0), sigma_min=0.2).at(1.0), "sigma_min: expected at most sigma_max=0.0"),
        (lambda: ad.parse("hard(p=lineal(start=0,end=1))"), "unknown schedule 'lineal': expected one of constant, linear"),
        (lambda: ad.parse("hard(p=linear(start=0))"), "linear: field 'end' is missing"),
        (lambda: ad.parse("hard(p=linear(begin=0,end=1))"), "linear: unknown field 'begin', expected one of start, end"),
        (lambda: ad.parse("hard(p=linear(start=0,start=0))"), "field 'start' is given twice"),
        (lambda: ad.parse("hard(p=linear(0,1,2))"), r"linear: expected at most 2 values \(start, end\), found 3"),
        (lambda: ad.parse("hard(p=linear(0,start=1))"), "linear: field 'start' is given twice"),
        (lambda: ad.parse("hard(p=linear(end=1,0))"), "expected '=', found '\\)'"),
        (lambda: ad.parse("hard(p=linear(0,"), "expected a name or value, found the end"),
        (lambda: ad.from_dict({"name": "hard", "p": {"start": 0}}), "unknown schedule None"),
    ],
)  # fmt: skip
def test_bad_schedules(make: object, message: str) -> None:
    with pytest.raises(ad.AttentionDropError, match=message):
        make()


def test_schedules_above_the_papers_range_warn() -> None:
    from attentiondrop.errors import forget_warnings

    forget_warnings()
    with pytest.warns(ad.AttentionDropWarning, match="p=0.8 is legal"):
        ad.DropKey(sc.Linear(0.0, 0.8))
