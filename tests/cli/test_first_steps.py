"""What somebody new meets: the first screen, lists, help texts, suggestions for misspelt names."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest
import yaml
from all_parsers import all_parsers

from attentiondrop.cli.main import _parser, main
from attentiondrop.experiments.config.recipe_files import read_recipe, shipped


def test_the_command_alone_shows_five_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    found = capsys.readouterr()
    commands = re.findall(r"^  attentiondrop (.*?)   ", found.out, flags=re.MULTILINE)
    assert len(commands) == 5 and not found.err
    for command in commands:
        assert _parser().parse_args(shlex.split(command)).command in command


@pytest.mark.parametrize("command", ["compare", "train", "ablate"])
def test_a_command_without_a_recipe_says_what_it_starts(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = ["--set", "data.name=npz", "data.root=missing.npz"]  # ends the command before its first run
    assert main([command, *wrong]) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "no recipe given: the demonstration `digits` (some minutes; Ctrl-C stops it)"
    assert main([command, "--dry-run", *wrong]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "no recipe given: the demonstration `digits`"
    assert main([command, "digits", *wrong]) == 2
    assert "no recipe given" not in capsys.readouterr().err


def test_every_help_text_is_a_sentence() -> None:
    texts = []
    for parser in all_parsers(_parser()):
        texts += [parser.description]
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                texts += [choice.help for choice in action._choices_actions]
            elif not isinstance(action, (argparse._HelpAction, argparse._VersionAction)):
                texts.append(action.help)
    texts = [text for text in texts if text != argparse.SUPPRESS]
    assert len(texts) > 80
    assert [text for text in texts if text is None or not re.fullmatch(r"[A-Z].*[.]", text, flags=re.DOTALL)] == []


def test_recipes_are_listed_with_what_they_are_and_their_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    shown = capsys.readouterr().out
    for name in shipped():
        assert re.search(rf"^{name}  \([a-z-]+\)$", shown, flags=re.MULTILINE)
    assert "  CIFAR-100, 60,000 colour images" in shown and "sizes: demo, small (default), paper" in shown
    assert max(map(len, shown.splitlines())) <= 110


def test_one_recipe_is_printed_with_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "digits", "--size", "small"]) == 0
    shown, recipe = yaml.safe_load(capsys.readouterr().out), read_recipe("digits", "small").to_dict()
    # flip-crop mirrors: `mirror: false`, which belongs to other augmentations, would say that it does not.
    del recipe["data"]["mirror"]
    assert shown == recipe and list(shown) == list(recipe)


def test_mirror_is_printed_where_it_decides(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: cifar10\ndata: {augment: trivialaugment}\n")
    assert main(["recipes", str(file)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["mirror"] is True
    assert main(["recipes", "cifar10"]) == 0
    assert "mirror" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["recipes", "digist"], "did you mean 'digits'?"),
        (["recipes", "digits", "--size", "samll"], "did you mean 'small'?"),
        (["show", "hrad"], "did you mean 'hard'?"),
        (["show", "blur(sigmamax=1)"], "did you mean 'sigma_max'?"),
        (["compare", "--methods", "dropuot"], "did you mean 'dropout'?"),
        (["compare", "--methods", "layerdrop(pp=0.1)"], "did you mean 'p'?"),
        (["compare", "--set", "epochs=3"], "epochs: no such setting, did you mean 'training.epochs'?"),
        (["compare", "--set", "trianing.epochs=3"], "did you mean 'training'?"),
        (["compare", "--set", "tuning.trial=3"], "did you mean 'trials'?"),
        (["bench", "vit", "--model", "vit_tny_patch16_224"], "did you mean 'vit_tiny_patch16_224'?"),
        (["train", "toy-language", "--set", "model.name=gpt22", "--dry-run"], "did you mean 'gpt2'?"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_misspelt_name_gets_a_suggestion(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str], monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert hint in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "method", "hint"),
    [
        ("bloom", "hard", "Choose another model, or methods that do not act on attention"),
        ("llama", "dropout", "choose methods without dropout, or another model"),
    ],
)
def test_a_model_that_a_method_cannot_act_on_gets_advice(
    name: str, method: str, hint: str, capsys: pytest.CaptureFixture[str], monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["model.width=16", f"model.name={name}", "data.sentences=60"]
    assert main(["train", "toy-language", "--method", method, "--dry-run", "--set", *small]) == 2
    assert hint in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "command", "hint"),
    [
        (["compare", "digits", "--methds", "none"], "compare", "--methds'; did you mean '--methods'?"),
        (["bench", "vit", "--bacth=3"], "bench vit", "--bacth=3'; did you mean '--batch'?"),
        (["bench", "attention", "--repeat", "3"], "bench attention", "--repeat'; did you mean '--repeats'?"),
        (["compare", "digits", "--method", "none"], "compare", "--method'; did you mean '--methods'?"),
        (["info", "more"], "info", "more'"),
    ],
)
def test_a_misspelt_option_gets_a_suggestion(
    words: list[str], command: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    shown = capsys.readouterr().err
    assert stop.value.code == 2 and shown.startswith(f"usage: attentiondrop {command} ")
    assert shown.endswith(f"no such argument: '{hint}\n")


@pytest.mark.parametrize(("word", "hint"), [("comapre", "; did you mean 'compare'?"), ("xyz", ". There are")])
def test_a_misspelt_command_gets_a_suggestion(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([word, "digits"])
    assert stop.value.code == 2
    assert f"no such command: {word!r}{hint}" in capsys.readouterr().err
