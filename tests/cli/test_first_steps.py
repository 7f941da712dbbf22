"""What somebody new meets: the first screen, lists, help texts, suggestions for misspelt names."""

from __future__ import annotations

import argparse
import re
import shlex

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
    assert yaml.safe_load(capsys.readouterr().out) == read_recipe("digits", "small").to_dict()


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
    ("words", "command", "hint"),
    [
        (["compare", "digits", "--methds", "none"], "compare", "--methds'; did you mean '--methods'?"),
        (["bench", "vit", "--bacth=3"], "bench vit", "--bacth=3'; did you mean '--batch'?"),
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
