"""Recipes: shipped ones are complete, wrong ones are refused with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from attentiondrop import AttentionDropError
from attentiondrop.experiments.config.recipe_files import read_recipe, shipped
from attentiondrop.experiments.config.schema import build_recipe
from attentiondrop.experiments.methods.grids import check_grids
from attentiondrop.experiments.methods.parse import read_methods
from attentiondrop.experiments.runs.identity import recorded


@pytest.mark.parametrize("size", ["demo", "small", "paper"])
@pytest.mark.parametrize("name", ["digits", "fashion-mnist", "cifar10", "cifar100", "imagenet"])
def test_shipped_recipes_are_whole(name: str, size: str) -> None:
    recipe = read_recipe(name, size)
    assert (recipe.name, recipe.size, recipe.data.name) == (name, size, name)
    assert read_methods(recipe.methods)[0].text == "none"
    check_grids(recipe.ablations, "ablations")
    assert build_recipe(recipe.to_dict()) == recipe


def test_the_paper_sizes_have_its_settings() -> None:
    for name in ("cifar10", "cifar100", "imagenet"):
        recipe = read_recipe(name, "paper")
        training = recipe.training
        assert recipe.model.name == "vit_base_patch16_224"
        assert (training.batch_size, training.weight_decay, training.warmup) == (256, 0.01, 0.1)
    assert recipe.data.augment == "randaugment"
    assert recipe.training.label_smoothing > 0


def test_shipped_lists_them() -> None:
    assert "digits" in shipped()


def test_files_and_changes(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: {name: npz, root: x.npz}\ntraining: {learning_rate: 1e-4, epochs: 7}\n")
    recipe = read_recipe(str(path), changes=["training.epochs=9", "data.label_noise=0.2", "training.clip=null"])
    assert (recipe.name, recipe.size) == ("mine", "")
    assert (recipe.training.learning_rate, recipe.training.epochs, recipe.training.clip) == (1e-4, 9, None)
    assert recipe.data.label_noise == 0.2
    assert recorded(recipe.to_dict())["data"]["label_noise"] == 0.2
    assert "root" not in recorded(recipe.to_dict())["data"]


def test_ablations_take_the_place_of_those_of_the_extended_recipe(tmp_path: Path) -> None:
    base, mine = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text("extends: cifar10\nsizes: {short: {ablations: {blur: {width: [3]}}}}\n")
    mine.write_text("extends: base.yaml\nablations: {hard: {p: [0.3]}}\n")
    assert len(read_recipe("cifar10").ablations) > 1 and "blur" in read_recipe(str(base), "short").ablations
    for size in ("paper", "short"):
        assert read_recipe(str(mine), size).ablations == {"hard": {"p": [0.3]}}
    assert read_recipe(str(mine), "paper", ["ablations.hard.k=[3]"]).ablations == {"hard": {"p": [0.3], "k": [3]}}


def test_extending(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("extends: cifar10\ntraining: {epochs: 7}\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\ndata: {train_fraction: 0.1}\n")
    recipe = read_recipe(str(tmp_path / "mine.yaml"), "paper")
    assert (recipe.name, recipe.data.name, recipe.data.train_fraction) == ("mine", "cifar10", 0.1)
    assert recipe.model.name == "vit_base_patch16_224"
    # What a recipe says wins over the sizes of those that it extends. Its own sizes win over that.
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\ntraining: {epochs: 5}\nsizes: {small: {seeds: 4}}\n")
    for file, size, epochs in (("base", "paper", 7), ("base", "demo", 7), ("mine", "paper", 5), ("mine", "small", 5)):
        assert read_recipe(str(tmp_path / f"{file}.yaml"), size).training.epochs == epochs
    assert read_recipe(str(tmp_path / "mine.yaml"), "small").seeds == 4
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nsizes: {small: {training: {epochs: 3}}}\n")
    assert read_recipe(str(tmp_path / "mine.yaml"), "small").training.epochs == 3
    for parent, message in (
        ("mine.yaml", r"extends: expected another recipe, received .*mine.yaml -> .*mine.yaml"),
        ("../{folder}/mine.yaml", r"extends: expected another recipe"),
        ("cifar11", "did you mean 'cifar10'"),
        ("[cifar10]", "extends: expected the name or path of a recipe"),
    ):
        (tmp_path / "mine.yaml").write_text(f"extends: {parent.format(folder=tmp_path.name)}\n")
        with pytest.raises(AttentionDropError, match=message):
            read_recipe(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["training.epoch=3"], "training.epoch: no such setting, did you mean 'epochs'? There are epochs, "),
        (["trainig.epochs=3"], "trainig: no such setting, did you mean 'training'?"),
        (["training.epochs=many"], "training.epochs: expected an integer, received 'many'"),
        (["training.epochs=2.5"], "training.epochs: expected an integer, received 2.5"),
        (["training.epochs=true"], "training.epochs: expected an integer, received True"),
        (["training.epochs=0"], "training.epochs: expected a number >= 1, received 0"),
        (["training=3"], "training: expected a mapping of settings, received 3"),
        (["training.learning_rate=0"], "training.learning_rate: expected a number > 0"),
        (["training.clip=-1"], "training.clip: expected a number >= 0, received -1"),
        (["training.precision=int8"], "training.precision: expected one of 'float32', 'bfloat16', 'float16'"),
        (["training.accumulate=7"], "training.accumulate: expected a divisor of the batch size 32, received 7"),
        (["training.compile=1"], "training.compile: expected true or false, received 1"),
        (["training.ema=1"], "training.ema: expected a number < 1: with 1, the average would stay at"),
        (["training.ema=2"], "training.ema: expected a number in [0, 1], received 2"),
        (["data.label_noise=2"], "data.label_noise: expected a number in [0, 1], received 2"),
        (["methods=none"], "methods: expected a list, received 'none'"),
        (["methods=[1]"], "methods[0]: expected a text, received 1"),
        (["model.arguments=3"], "model.arguments: expected a mapping, received 3"),
        (["evaluation.pgd_epsilons=[-1]"], "evaluation.pgd_epsilons[0]: expected a number >= 0"),
        (["tuning.trials=-1"], "tuning.trials: expected a number >= 0, received -1"),
        (["tuning.trials=7"], "tuning.trials: expected at most tuning.points, which is 6, received 7"),
        (["methods=[none, wieghts]"], "methods: unknown group 'wieghts': did you mean 'weights'?"),
        (["training.epochs"], "set: expected SECTION.SETTING=VALUE"),
        (["training.epochs=[1"], "set training.epochs: expected YAML, but"),
        (["data.root=/a #b"], "set data.root: expected a value without a YAML comment (a text with # needs quotes"),
        (["data.root=#b"], "set data.root: expected a value without a YAML comment"),
        (["methods=[none, # hard]\n]"], "set methods: expected a value without a YAML comment"),
        (["training.epochs=010"], "set training.epochs: expected YAML, but line 1 has 010: write a number without"),
        (["training.learning_rate=-0_1"], "line 1 has -0_1: write a number without zeros at its beginning"),
        (["model.arguments.depth=010"], "set model.arguments.depth: expected YAML, but line 1 has 010"),
        (["training.epochs=1:30"], "training.epochs: expected an integer, received '1:30'"),
        (["training.learning_rate=1:30.5"], "training.learning_rate: expected a number, received '1:30.5'"),
        (
            ["data.root=123"],
            "data.root: expected a text, received 123; in quotes, 123, no and null are texts: --set 'S",
        ),
        (["data.root=no"], "data.root: expected a text, received False; in quotes, 123, no and null are texts: --set"),
        (["methods=[none, 1.5]"], "methods[1]: expected a text, received 1.5; in quotes, 123, no and null are texts"),
    ],
)
def test_wrong_settings_are_refused(changes: list[str], message: str) -> None:
    with pytest.raises(AttentionDropError) as caught:
        read_recipe("digits", changes=changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        AttentionDropError, match=r"recipe 'cifra10': no such recipe or \.yaml file, did you mean 'cifar10'"
    ):
        read_recipe("cifra10")
    with pytest.raises(AttentionDropError, match="size 'papr' of digits: no such size, did you mean 'paper'"):
        read_recipe("digits", "papr")
    path = tmp_path / "list.yaml"
    path.write_text("- 1\n")
    with pytest.raises(AttentionDropError, match="expected a mapping of settings"):
        read_recipe(str(path))
    with pytest.raises(OSError, match="No such file"):
        read_recipe(str(tmp_path / "none.yaml"))


def test_capture_is_a_text_although_yaml_reads_on_and_off_as_true_and_false(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    for text in ("on", "off", "auto"):
        path.write_text(f"extends: digits\ntraining: {{capture: {text}}}\n")
        assert read_recipe(str(path), "demo").training.capture == text
        assert read_recipe("digits", "demo", [f"training.capture={text}"]).training.capture == text
    with pytest.raises(AttentionDropError, match=r"training\.capture: expected .*'auto'.*, received 'always'"):
        read_recipe("digits", "demo", ["training.capture=always"])
    with pytest.raises(AttentionDropError, match=r"training\.device: expected a text, received True"):
        read_recipe("digits", "demo", ["training.device=on"])


def test_capture_is_not_part_of_what_a_run_is() -> None:
    one, other = (read_recipe("digits", "demo", [f"training.capture={text}"]).to_dict() for text in ("off", "auto"))
    assert one != other and recorded(one) == recorded(other)


@pytest.mark.parametrize(
    ("change", "root"),
    [
        ("data.root=/a#b", "/a#b"),
        ('data.root="/a #b"', "/a #b"),
        ("data.root='/a # b'", "/a # b"),
        ('data={root: "/a #b"}', "/a #b"),
        ("data.root='123'", "123"),
        ('data.root="no"', "no"),
        ("data.root=1:30", "1:30"),
        ("data.root='010'", "010"),
    ],
)
def test_a_text_stays_as_it_was_written(change: str, root: str) -> None:
    assert read_recipe("digits", changes=[change]).data.root == root


@pytest.mark.parametrize(
    ("change", "rate"), [("0", 0.0), ("-0", 0.0), ("0.05", 0.05), ("00.5", 0.5), ("+0x1", 1.0), ("1_0e-1", 1.0)]
)
def test_numbers_that_begin_with_a_single_zero_are_numbers(change: str, rate: float) -> None:
    assert read_recipe("digits", changes=[f"training.warmup={change}"]).training.warmup == rate


def test_what_a_list_or_a_mapping_is_needs_no_hint() -> None:
    for given in ("[1]", "{a: 1}"):
        with pytest.raises(AttentionDropError, match=r"data\.root: expected a text, received [^;]*$"):
            read_recipe("digits", changes=[f"data.root={given}"])


def test_a_file_has_the_same_numbers_and_may_have_comments(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: digits # as it is\ntraining:\n  epochs: 7 # few\n")
    assert read_recipe(str(path)).training.epochs == 7
    for content, message in (
        (
            "epochs: 010",
            r"mine\.yaml: expected YAML, but line 3 has 010: write a number without zeros at its beginning",
        ),
        ("epochs: 1:30", r"mine\.yaml: training\.epochs: expected an integer, received '1:30'"),
        ("device: on", r"training\.device: expected a text, received True; in quotes, 123, no and null are texts$"),
    ):
        path.write_text(f"extends: digits\ntraining:\n  {content}\n")
        with pytest.raises(AttentionDropError, match=message):
            read_recipe(str(path))
