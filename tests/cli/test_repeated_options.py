"""An option that takes several values may also be given several times: nothing is dropped."""

from __future__ import annotations

import pytest
from all_parsers import all_parsers

from attentiondrop.cli.ablate import _grids
from attentiondrop.cli.main import _parser

PARSER = _parser()


@pytest.mark.parametrize(
    ("command", "name", "values"),
    [
        (["compare"], "set", ["a=1", "b=2", "c=3"]),
        (["train"], "set", ["a=1", "b=2", "c=3"]),
        (["ablate"], "set", ["a=1", "b=2", "c=3"]),
        (["compare"], "methods", ["none", "hard", "blur"]),
        (["ablate"], "vary", ["p=0.1,0.2", "k=3,5", "fill=zero"]),
        (["train"], "track", ["tensorboard", "wandb", "tensorboard"]),
        (["evaluate", "run"], "epsilon", ["0.5", "0.25", "0.125"]),
        (["bench", "attention"], "shape", ["1,1,8,8", "1,1,9,8", "1,1,10,8"]),
        (["bench", "vit"], "rows", ["a", "b", "c"]),
        (["bench", "vit"], "modes", ["eager", "blocks", "compiled"]),
    ],
)
def test_together_and_one_by_one_mean_the_same(command: list[str], name: str, values: list[str]) -> None:
    together = PARSER.parse_args([*command, f"--{name}", *values])
    one_by_one = PARSER.parse_args([*command, *(word for value in values for word in (f"--{name}", value))])
    mixed = PARSER.parse_args([*command, f"--{name}", *values[:2], f"--{name}", values[2]])
    assert len(getattr(together, name)) == 3
    assert vars(together) == vars(one_by_one) == vars(mixed)


def test_one_call_leaves_nothing_for_the_next() -> None:
    PARSER.parse_args(["compare", "--set", "a=1"])
    assert PARSER.parse_args(["compare"]).set == []
    assert PARSER.parse_args(["compare", "--set", "b=2"]).set == ["b=2"]


def test_every_option_with_several_values_is_one_of_them() -> None:
    several = [
        action
        for parser in all_parsers(PARSER)
        for action in parser._actions
        if action.option_strings and action.nargs in ("+", "*")
    ]
    assert len(several) > 10
    assert {type(action).__name__ for action in several} == {"_ExtendAction"}


def test_values_of_one_field_that_are_given_apart_are_all_varied() -> None:
    args = PARSER.parse_args(["ablate", "--method", "hard", "--vary", "p=0.1,0.2", "k=3", "--vary", "p=0.5"])
    assert _grids(args) == {"hard": {"p": [0.1, 0.2, 0.5], "k": [3]}}
