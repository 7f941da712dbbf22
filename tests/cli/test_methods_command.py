"""`attentiondrop methods`: what it lists, as text and as JSON, without a framework."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from attentiondrop.cli.main import main
from attentiondrop.experiments.methods.catalogue import catalogue
from attentiondrop.experiments.methods.grids import candidates
from attentiondrop.experiments.methods.groups import ALL, groups
from attentiondrop.experiments.methods.parse import read_method


def test_every_method_is_listed_with_its_fields_settings_and_reference(capsys) -> None:
    assert main(["methods", "all"]) == 0
    shown = capsys.readouterr().out
    for text in groups()[ALL]:
        full = read_method(text).text
        assert f"\n{'none(lr=1.0,decay=1.0)' if text == 'none' else full}\n" in shown
        assert f"tuned over 6: {', '.join(candidates(text, 6, 1000))}\n" in shown
    assert "Srivastava et al. 2014, Dropout" in shown
    formulas = [one.formula for one in catalogue(["all"]) if one.formula]
    assert formulas and all(f"\n  {formula}\n" in shown for formula in formulas)


def test_the_list_has_every_method_under_its_group_in_short_lines(capsys) -> None:
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, members in groups().items():
        if name != ALL:
            below = lines[lines.index(f"{name}: {len(members)} methods") :]
            listed = [line for line in below[: below.index("")] if line.startswith("  ") and line[2] != " "]
            assert [line.split()[0] for line in listed] == list(members)
    assert max(map(len, lines)) <= 120 and len(lines) < 150


def test_a_part_of_other_methods_is_shown_if_it_is_asked_for(capsys) -> None:
    assert main(["methods", "shorter"]) == 0
    shown = capsys.readouterr().out
    assert "shorter(times=0.66)" in shown and "groups: none, it is a part of other methods" in shown
    assert main(["methods", "all"]) == 0 and "shorter" not in capsys.readouterr().out


def test_as_json_and_only_some(capsys) -> None:
    assert main(["methods", "--json", "weights", "hard"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert set(found) == {"hard", *groups()["weights"]}
    assert found["dropconnect"]["settings"][0] == "dropconnect(p=0.1)" and found["dropconnect"]["groups"] == ["weights"]
    assert found["dropconnect"]["training_only"] and not found["headpruning"]["training_only"]


@pytest.mark.parametrize("name", ["hrad", "wieghts"])
def test_a_misspelt_name(capsys, name: str) -> None:
    assert main(["methods", name]) == 2
    wanted = {"hrad": "hard", "wieghts": "weights"}[name]
    assert capsys.readouterr().err == (
        f"attentiondrop methods: method {name!r}: no such method or group, did you mean {wanted!r}? "
        "`attentiondrop methods` lists all\n"
    )


def test_a_name_like_no_other_is_not_answered_by_all_names(capsys) -> None:
    assert main(["methods", "foo"]) == 2
    assert capsys.readouterr().err == (
        "attentiondrop methods: method 'foo': no such method or group. `attentiondrop methods` lists all\n"
    )
    assert main(["compare", "digits", "--methods", "foo"]) == 2
    assert capsys.readouterr().err == (
        "attentiondrop compare: unknown method 'foo' in 'foo': `attentiondrop methods` lists all\n"
    )


def test_no_framework_is_loaded() -> None:
    code = (
        "import sys; from attentiondrop.cli.main import main; main(['methods']); "
        "assert not {'torch', 'timm', 'torchvision', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
