"""Recipes and settings that are wrong in every way: one line that names file and key, status 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from attentiondrop.cli.main import main

#: Ten levels of ten aliases each: ten billion values in 400 bytes.
BOMB = "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(10))
#: Each level holds the one before once: few values, but many levels.
LADDER = "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(300))
HUGE = "9" * 400
#: More digits than Python reads or writes.
ENORMOUS = "9" * 5000
HEXADECIMAL = "0x" + "f" * 5000

#: What the file holds -> what the line says after the name of the file.
FILES: list[tuple[str | bytes, str]] = [
    (f"training: {{epochs: {HUGE}}}", "training.epochs: expected a number"),
    (f"training: {{epochs: {ENORMOUS}}}", "expected YAML, but Exceeds the limit"),
    (f"training: {{epochs: {HEXADECIMAL}}}", "training.epochs: expected a number, received an int of 20000 bits"),
    (f"training: {{epochs: -{HEXADECIMAL}}}", "training.epochs: expected"),
    (f"training: {{learning_rate: {HUGE}}}", "training.learning_rate: expected a number"),
    (f"training: {{learning_rate: {HEXADECIMAL}}}", "training.learning_rate: expected a number"),
    ("training: {learning_rate: 1e999}", "training.learning_rate: expected a number"),
    ("training: {learning_rate: .nan}", "training.learning_rate: expected a number"),
    ("training: {epochs: 1e30}", "training.epochs: expected an integer, received '1e30'"),
    ("training: {epochs: 10000000000000000000}", "training.epochs: expected an integer of at most"),
    ("seeds: 1000000000000", "seeds: expected an integer of at most 10000"),
    (f"data: {{seed: {HUGE}}}", "data.seed: expected"),
    (f"model: {{arguments: {{depth: {HUGE}}}}}", "model.arguments.depth: expected a number"),
    (f"model: {{arguments: {{depth: {HEXADECIMAL}}}}}", "model.arguments.depth: expected a number"),
    ("model: {arguments: {depth: 99999999999999999999}}", "model.arguments.depth: expected an integer of at most"),
    ("model: {arguments: {depth: .inf}}", "model.arguments.depth: expected a number"),
    ("model: {arguments: {born: 2020-01-01}}", "model.arguments.born: expected a number, a text"),
    ("model: {arguments: {born: [2020-01-01 10:00:00]}}", "model.arguments.born[0]: expected a number, a text"),
    ("model: {arguments: {2020-01-01: 3}}", "model.arguments: expected names that are texts"),
    ("model: {arguments: {1: 3}}", "model.arguments: expected names that are texts"),
    ("model: {arguments: {raw: !!binary aGVsbG8=}}", "model.arguments.raw: expected a number, a text"),
    ("model: {arguments: {all: !!set {a, b}}}", "model.arguments.all: expected a number, a text"),
    ("training: {epochs: 2020-01-01}", "training.epochs: expected an integer"),
    ("training: {epochs: 2020-13-45}", "expected YAML, but month must be in 1..12"),
    ("name: 2020-01-01", "name: expected a text"),
    ("2020-01-01: 3", "2020-01-01: no such setting"),
    ("training: {epochs: !!timestamp never}", "expected YAML, but"),
    ("training: {epochs: !!int ''}", "expected YAML, but"),
    ("training: {compile: !!bool maybe}", "expected YAML, but"),
    ("training: !!python/object/apply:os.getcwd []", "expected YAML, but"),
    (b"name: \xff\xfe", "expected text in UTF-8, found another byte at position 6"),
    ("training: {epochs: 3}".encode("utf-16"), "expected text in UTF-8, found another byte at position 0"),
    (b"name: a\0b", "expected YAML, but unacceptable character #x0000"),
    ('name: "a\\0b"', "name: expected a text without zero bytes"),
    ('name: "a\\uD800b"', "name: expected a text without zero bytes and half characters"),
    ('data: {root: "a\\0b"}', "data.root: expected a text without zero bytes"),
    ('model: {arguments: {a: "\\0"}}', "model.arguments.a: expected a text without zero bytes"),
    ('extends: "a\\0b.yaml"', "extends: expected a text without zero bytes"),
    ("[" * 100_000, "expected at most 20 levels of nesting"),
    ("model: {arguments: " + "{a: " * 500 + "1" + "}" * 501, "expected at most 20 levels of nesting"),
    ("".join(f"{' ' * i}a:\n" for i in range(500)), "expected at most 20 levels of nesting"),
    (BOMB, "expected at most 10000 values, aliases written out"),
    (f"model: {{arguments: {{{BOMB.strip().replace(chr(10), ', ')}}}}}", "expected at most 10000 values"),
    (LADDER, "expected at most 20 levels of nesting"),
    ("training: &a {epochs: *a}", "expected values, found that 'a' contains itself"),
    ("training: *a", "expected YAML, but found undefined alias 'a'"),
    ("x" * 2_000_000, "expected a recipe, which has less than a megabyte"),
    ("[a, b]: 3\ntraining", "expected YAML, but"),
    ("training: {epochs: 1}\ntraining: {batch_size: 2}", "expected YAML, but line 2 gives 'training' a second time"),
    ("", "expected a mapping of settings, received None"),
    ("- 1", "expected a mapping of settings"),
    ("sizes: 3", "sizes: expected a mapping from names of sizes"),
    ("sizes: [demo, small]", "sizes: expected a mapping from names of sizes"),
    ("sizes: {demo: 3}", "sizes.demo: expected a mapping from names of sizes"),
    ("sizes: {demo: [1]}", "sizes.demo: expected a mapping from names of sizes"),
    ("sizes: {3: {}}", "sizes.3: expected a mapping from names of sizes"),
    ("sizes: {demo: {}, null: {}}", "sizes.None: expected a mapping from names of sizes"),
    ("sizes: {demo: {}}\ndefault_size: [demo]", "default_size: expected the name of a size"),
    ("sizes: {demo: {}}\ndefault_size: 3", "default_size: expected the name of a size"),
    ("name: ../evil", "name: expected a name of at most 100 letters"),
    ("name: /evil", "name: expected a name of at most 100 letters"),
    ("name: ..", "name: expected a name of at most 100 letters"),
    ("name: ''", "name: expected a name of at most 100 letters"),
    ("name: 'a\\evil'", "name: expected a name of at most 100 letters"),
    ('name: "a\\nb"', "name: expected a name of at most 100 letters"),
    (f"name: {'a' * 300}", "name: expected a name of at most 100 letters"),
    ("size: ../../evil", "size: expected a name of at most 100 letters"),
    ("sizes: {../evil: {}}", "size: expected a name of at most 100 letters"),
    ("methods: [hard, hrad]", "methods: unknown method 'hrad'"),
    (f"methods: ['{'oneof(' * 2000}']", "methods: "),
    (f"methods: ['hard(k={HUGE})']", "methods: "),
    (f"methods: ['hard(k={ENORMOUS})']", "methods: "),
    ("methods: [2020-01-01]", "methods[0]: expected a text"),
    ("tuning: {grids: {hard: 3}}", "tuning.grids.hard: expected a mapping from fields to lists"),
    ("tuning: {grids: {hard: {p: [7]}}}", "tuning.grids.hard.p: "),
    (f"tuning: {{grids: {{hard: {{k: [{HUGE}]}}}}}}", "tuning.grids.hard.k[0]: expected a number"),
    ("tuning: {grids: {hard: {p: [2020-01-01]}}}", "tuning.grids.hard.p[0]: expected a number, a text"),
    ("ablations: [hard]", "ablations: expected a mapping"),
    ("ablations: {hard: {p: 3}}", "ablations.hard: expected a mapping from fields to lists"),
]


def named(text: str | bytes) -> str:
    return repr(text[:40])


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command that must be refused in one line with nothing written, and returns the line."""
    home = tmp_path / "here" / "below"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)

    def run(*arguments: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert main(list(arguments)) == 2
        printed = capsys.readouterr()
        assert sorted(tmp_path.rglob("*")) == before, "something was written"
        assert printed.out == "" and "Traceback" not in printed.err
        assert printed.err.count("\n") == 1 and len(printed.err) < 1200
        return printed.err

    return run


@pytest.mark.parametrize(("content", "message"), FILES, ids=lambda value: named(value))
def test_a_bad_file_is_one_line_that_names_it(content: str | bytes, message: str, refused, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused("compare", str(path))
    assert f"attentiondrop compare: {path}: {message}" in line


@pytest.mark.parametrize("command", ["compare", "train", "ablate"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (f"training.epochs={HUGE}", "training.epochs: expected a number"),
        (f"training.epochs={ENORMOUS}", "set training.epochs: expected YAML, but Exceeds the limit"),
        (f"training.epochs={HEXADECIMAL}", "training.epochs: expected a number"),
        ("training.epochs=2020-01-01", "training.epochs: expected an integer"),
        ("training.epochs=2020-99-01", "set training.epochs: expected YAML"),
        ("training.epochs=" + "[" * 100_000, "set training.epochs: expected at most 20 levels of nesting"),
        ("training.epochs=&a [*a]", "set training.epochs: expected values, found that 'a' contains itself"),
        ("training.epochs=\udcff", "set training.epochs: expected YAML"),
        ("model.arguments.born=2020-01-01", "model.arguments.born: expected a number, a text"),
        ("model.arguments." + "a." * 5000 + "a=1", "expected at most 20 levels of nesting"),
        ("." * 5000 + "=1", ": no such setting"),
        ("=1", "set: expected SECTION.SETTING=VALUE"),
        ("name=../evil", "name: expected a name of at most 100 letters"),
        ("size=/evil", "size: expected a name of at most 100 letters"),
        ('data.root="\\0"', "data.root: expected a text without zero bytes"),
        ("sizes={}", "sizes: no such setting"),
        ("tuning.grids={hard: 3}", "tuning.grids.hard: expected a mapping from fields to lists"),
    ],
    ids=lambda value: named(value),
)
def test_a_bad_setting_is_one_line_that_names_it(command: str, change: str, message: str, refused) -> None:
    line = refused(command, "--set", "training.batch_size=16", "--set", change)
    assert message in line and "digits:" not in line


def test_seeds_of_the_command_line_have_the_same_limit(refused) -> None:
    assert "seeds: expected an integer of at most 10000" in refused("compare", "--seeds", "1000000000000")


def test_aliases_that_stand_for_little_are_welcome(tmp_path: Path) -> None:
    from attentiondrop.experiments.config.recipe_files import read_recipe

    path = tmp_path / "mine.yaml"
    path.write_text(
        "model: {arguments: &shape {depth: 2}}\nsizes:\n  small: {model: {arguments: {<<: *shape, a: 1}}}\n"
    )
    assert read_recipe(str(path)).model.arguments == {"depth": 2, "a": 1}
    assert read_recipe(str(path), changes=["data.seed=9007199254740993"]).data.seed == 9007199254740993
