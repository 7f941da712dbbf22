"""Labelled texts and classifiers of transformers: new, and fine-tuned from a local folder."""

from __future__ import annotations

import dataclasses
import gzip
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import attentiondrop as ad
from attentiondrop.errors import ArgumentError
from attentiondrop.experiments.config.recipe_files import read_recipe
from attentiondrop.experiments.runs.execute import execute
from attentiondrop.experiments.runs.job import Job
from attentiondrop.experiments.runs.store import read_run
from attentiondrop.experiments.studies.certify import check_certifiable
from attentiondrop.experiments.studies.compare import compare
from attentiondrop.experiments.tasks.interface import forward
from attentiondrop.experiments.tasks.registry import find_task
from attentiondrop.experiments.tasks.text.generated_sentences import generated_labels
from attentiondrop.experiments.tasks.text_classification.labelled_data import load_labelled
from attentiondrop.experiments.tasks.text_classification.labelled_settings import ClassifierSettings, LabelledSettings
from attentiondrop.experiments.train.accelerator import on_this_machine
from attentiondrop.torch import attach

TASK = find_task("text-classification")
SMALL = [
    "data.sentences=80",
    "model.width=16",
    "model.arguments.intermediate_size=32",
    "training.device=cpu",
    "measure.probes=0",
]
SIZES = {"heads": 2, "width": 16, "dropout": 0.0, "attention_dropout": 0.0, "arguments": {"intermediate_size": 32}}


@pytest.fixture(scope="module")
def data():
    return load_labelled(LabelledSettings(sentences=80, length=10))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data) -> Path:
    """A pretrained model with its tokenizer, as transformers stores them."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    where = tmp_path_factory.mktemp("pretrained")
    words = ["[PAD]", "[UNK]", *sorted({word for _, text in generated_labels(200, 0) for word in text.split()})]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(where)
    settings = ClassifierSettings(**SIZES | {"dropout": 0.25})
    TASK.build_model(settings, load_labelled(LabelledSettings(sentences=80, length=12)), {}, 5).save_pretrained(where)
    return where


def test_a_new_classifier_learns(tmp_path: Path) -> None:
    recipe = read_recipe("toy-text-classification", None, [*SMALL, "data.sentences=200", "training.learning_rate=0.01"])
    result = execute(Job(recipe.to_dict(), "hard", 0, str(tmp_path)))
    assert result.error is None and result.test["accuracy"] > 0.6  # of five animals


@pytest.mark.parametrize("name", ["roberta", "camembert", "mpnet", "xlm-roberta-xl", "esm", "luke"])
def test_positions_may_count_from_the_padding(name: str, data) -> None:
    # (Luke knows half a million entities, which would take seven seconds.)
    arguments = SIZES["arguments"] | ({"entity_vocab_size": 10} if name == "luke" else {})
    settings = ClassifierSettings(**SIZES | {"name": name, "layers": 1, "arguments": arguments})
    model = TASK.build_model(settings, data, {}, 0)
    words = torch.full((1, 10), data.vocabulary - 1)  # a text of full length
    assert model(input_ids=words, attention_mask=torch.ones_like(words)).logits.isfinite().all()


def test_positions_before_the_text_of_a_pretrained_model_are_not_for_the_text(data, tmp_path: Path) -> None:
    TASK.build_model(ClassifierSettings(**SIZES | {"name": "roberta", "layers": 1}), data, {}, 0).save_pretrained(
        tmp_path
    )
    again = ClassifierSettings(checkpoint=str(tmp_path))
    assert TASK.build_model(again, data, {}, 0).config.max_position_embeddings == 11
    with pytest.raises(ArgumentError, match=r"data.length: expected at most the 10 positions of .*, received 11"):
        TASK.build_model(again, load_labelled(LabelledSettings(sentences=80, length=11)), {}, 0)


@pytest.mark.parametrize(("name", "layers"), [("distilbert", 2), ("bert", 3)])
def test_dropout_is_that_of_all_layers(name: str, layers: int, data) -> None:
    """The head of a classifier has a rate of its own in many configurations."""
    arguments = {} if name == "distilbert" else SIZES["arguments"]
    model = TASK.build_model(
        ClassifierSettings(**SIZES | {"name": name, "layers": 1, "dropout": 0.25, "arguments": arguments}), data, {}, 0
    )
    rates = [module.p for path, module in model.named_modules() if isinstance(module, torch.nn.Dropout)]
    assert rates.count(0.25) >= layers and set(rates) <= {0.0, 0.25}


def test_parts_of_a_batch_and_shares_of_processes_are_the_whole(data) -> None:
    batch = next(data.train_batches(seed=0, epoch=0, batch_size=8))
    halves = [next(data.train_batches(seed=0, epoch=0, batch_size=8, rank=rank, world=2)) for rank in (0, 1)]
    for parts in (TASK.split(batch, 2), halves):
        assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)
        for name, whole in batch.inputs.items():
            assert torch.equal(torch.cat([part.inputs[name] for part in parts]), whole)
    shares = [list(data.batches("test", 8, rank=rank, world=3)) for rank in range(3)]
    assert len({tuple(part.targets.shape for part in share) for share in shares}) == 1
    labels = torch.cat([torch.cat(each) for each in zip(*([p.targets for p in s] for s in shares), strict=True)])
    assert torch.equal(labels[labels >= 0], data.labels["test"])


def test_checksums_tell_data_apart_and_moving_changes_nothing(data) -> None:
    moved = data.to("cpu")
    assert moved.checksums == data.checksums == data.having("train", "validation", "test").checksums
    for part in data.counts:
        for one, other in zip(moved.batches(part, 8), data.batches(part, 8), strict=True):
            assert torch.equal(one.targets, other.targets) and one.inputs.keys() == other.inputs.keys()
            assert all(torch.equal(one.inputs[name], other.inputs[name]) for name in one.inputs)
    for field in ("tokens", "lengths", "labels"):
        held = getattr(data, field)
        changed = dataclasses.replace(data, **{field: held | {"test": held["test"] + 1}}).checksums
        assert changed["test"] != data.checksums["test"] and changed["train"] == data.checksums["train"]
    renamed = dataclasses.replace(data, classes=data.classes[::-1])
    assert not set(renamed.checksums.values()) & set(data.checksums.values())


def test_padding_changes_nothing(data) -> None:
    large = SIZES | {"arguments": SIZES["arguments"] | {"initializer_range": 0.5}}  # so that attention matters
    model = TASK.build_model(ClassifierSettings(**large), data, {}, 0).eval()
    long = load_labelled(LabelledSettings(sentences=80, length=9))
    assert data.notes == long.notes == () and long.lengths["test"].max() == 8
    outputs = [forward(model, next(each.batches("test", 8)).inputs).logits for each in (data, long)]
    torch.testing.assert_close(*outputs)
    shown = next(data.batches("test", 8)).inputs | {"attention_mask": torch.ones(8, 10, dtype=torch.long)}
    assert not torch.allclose(forward(model, shown).logits, outputs[0])


def test_scores_of_an_attached_classifier_are_bitwise_those_of_the_unattached(data) -> None:
    model = TASK.build_model(ClassifierSettings(**SIZES), data, {}, 0)
    plain = TASK.scores(model, data, "test", 8, None)
    assert len(attach(model, ad.HardMasking(p=0.5, k=2)).sites) == 2
    assert TASK.scores(model, data, "test", 8, None) == plain
    assert plain.keys() >= {"accuracy", "nll", "ece", "brier"}


def test_fine_tuning_begins_with_the_weights_of_the_folder(data, folder: Path, tmp_path: Path) -> None:
    settings = LabelledSettings(sentences=80, length=10, tokenizer=str(folder))
    tokens = load_labelled(settings)
    # With the number of classes of the folder all weights are loaded, the head too; its rates stay.
    saved = TASK.build_model(ClassifierSettings(checkpoint=str(folder)), tokens, {}, 0)
    again = TASK.build_model(ClassifierSettings(checkpoint=str(folder)), tokens, {"dropout": 0.1}, 1)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in saved.state_dict().items())
    assert (saved.config.hidden_dropout_prob, again.config.hidden_dropout_prob) == (0.25, 0.1)
    changes = [*SMALL, f"model.checkpoint={folder}", f"data.tokenizer={folder}", "data.train_fraction=0.5"]
    recipe = on_this_machine(read_recipe("toy-text-classification", None, [*changes, "training.epochs=1"]))
    result = execute(Job(recipe.to_dict(), "hard+consistency", 0, str(tmp_path)))
    assert result.error is None
    with pytest.raises(ArgumentError, match=r"data.length: expected at most the 12 positions of .*, received 13"):
        TASK.build_model(ClassifierSettings(checkpoint=str(folder)), load_labelled(LabelledSettings(length=13)), {}, 0)


def test_another_number_of_classes_gets_a_new_head(folder: Path, tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.tsv.gz").write_bytes(gzip.compress(b"yes\tthe cat sees the dog\nno\tthe dog hears\n" * 5))
    data = load_labelled(LabelledSettings("parts", root=str(tmp_path), length=8, tokenizer=str(folder)))
    assert data.classes == ("no", "yes") and data.labels["test"].tolist() == [1, 0] * 5
    models = [TASK.build_model(ClassifierSettings(checkpoint=str(folder)), data, {}, seed) for seed in (0, 0, 1)]
    heads = [model.classifier.weight for model in models]
    assert heads[0].shape == (2, 16) and torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
    assert torch.equal(
        models[0].bert.embeddings.word_embeddings.weight, models[2].bert.embeddings.word_embeddings.weight
    )


def test_a_folder_without_the_body_of_the_model_is_refused(data, tmp_path: Path) -> None:
    TASK.build_model(ClassifierSettings(**SIZES), data, {}, 0).save_pretrained(tmp_path)
    with pytest.raises(
        ArgumentError, match=r"model.checkpoint: expected weights of BertForSeq\w+, received 'none that fit f"
    ):
        TASK.build_model(ClassifierSettings(checkpoint=str(tmp_path), arguments={"num_hidden_layers": 3}), data, {}, 0)
    with pytest.raises(ArgumentError, match=r"; model\.arguments changes the model in the folder: intermediate_size$"):
        TASK.build_model(ClassifierSettings(checkpoint=str(tmp_path), arguments={"intermediate_size": 8}), data, {}, 0)


def test_the_recipe_of_the_page_fine_tunes_a_model_of_any_size(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[4] / "docs/fine-tuning.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Path("texts.yaml").write_text(page.partition("## Text")[2].partition("```yaml\n")[2].partition("```")[0], "utf-8")
    Path("my-texts").mkdir()
    for part in ("train", "valid", "test"):
        Path("my-texts", part).write_text("yes\tthe cat sees the dog\nno\tthe dog hears\n" * 5)
    # Another size than that of the recipe `toy-text-classification`.
    settings = ClassifierSettings(**SIZES | {"layers": 1, "arguments": {"intermediate_size": 24}})
    shutil.copytree(folder, "my-checkpoint")
    TASK.build_model(settings, load_labelled(LabelledSettings(length=128)), {}, 0).save_pretrained("my-checkpoint")
    recipe = on_this_machine(read_recipe("texts.yaml", None, ["training.epochs=1", "training.device=cpu"]))
    assert execute(Job(recipe.to_dict(), "hard", 0, str(tmp_path / "run"))).error is None


@pytest.mark.parametrize("task", ["text-classification", "language"])
def test_a_pretrained_model_without_its_tokenizer_is_refused(task: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"task: {task}\nmodel: {{checkpoint: somewhere}}\n")
    with pytest.raises(
        ArgumentError, match=r"own\.yaml: data\.tokenizer: expected the folder of the tokenizer of model"
    ):
        read_recipe(str(path))


def test_a_certificate_does_not_say_that_texts_have_no_accuracy(data) -> None:
    with pytest.raises(ArgumentError, match=r"run: expected one of a task with examples in one tensor, .* text-cl"):
        check_certifiable(SimpleNamespace(task=TASK, data=data))


def test_what_a_report_says_of_the_texts() -> None:
    assert TASK.special({"train_fraction": 0.1}) == ["10 % of the training texts"]
    assert TASK.special({"train_fraction": 1.0}) == [] == TASK.special({})
    assert set(TASK.packages(LabelledSettings())) == {"transformers", "tokenizers"}


def test_long_texts_are_cut_off_and_counted(folder: Path) -> None:
    for tokenizer in (None, str(folder)):
        data = load_labelled(LabelledSettings(sentences=80, length=5, tokenizer=tokenizer))
        assert data.tokens["train"].shape == (80, 5) and (data.lengths["train"] == 5).all()
        assert TASK.notes(data)[0] == "80 of 80 texts of the train part cut off after 5 tokens"


def test_a_text_is_longer_than_its_special_tokens(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    both = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[UNK]", "[PAD]")]
    template = pytest.importorskip("tokenizers").processors.TemplateProcessing
    tokenizer.backend_tokenizer.post_processor = template("[UNK] $A [PAD]", special_tokens=both)
    tokenizer.save_pretrained(tmp_path)
    for length in (1, 2):
        with pytest.raises(
            ArgumentError, match=rf"data\.length: expected more than the 2 special .*, received {length}"
        ):
            load_labelled(LabelledSettings(length=length, tokenizer=str(tmp_path)))
    assert load_labelled(LabelledSettings(length=3, tokenizer=str(tmp_path))).tokens["train"].shape[1] == 3


def test_parts_are_held_out_and_reduced(tmp_path: Path) -> None:
    lines = "".join(f"{'ab'[n % 2]}\tword{n}\n" for n in range(40))
    (tmp_path / "train.txt").write_text(lines)
    (tmp_path / "test.txt").write_text("a\tword1\n")
    data = load_labelled(LabelledSettings("parts", root=str(tmp_path), validation=0.25, train_fraction=0.5, length=2))
    assert data.counts == {"train": 15, "validation": 10, "test": 1}
    other = load_labelled(LabelledSettings("parts", root=str(tmp_path), validation=0.25, length=2))
    assert other.counts["train"] == 30 and torch.equal(other.labels["validation"], data.labels["validation"])


def test_bad_texts_are_refused(folder: Path, tmp_path: Path) -> None:
    def refused(message: str, **settings) -> None:
        with pytest.raises(ArgumentError, match=message):
            load_labelled(LabelledSettings(**{"name": "parts", "root": str(tmp_path)} | settings))

    for part in ("train", "valid", "test"):
        (tmp_path / part).write_text("a\tx\nb\ty\n")
    refused(r"data\.root: expected a folder with files of labels and texts, received None", root=None)
    (tmp_path / "train").write_text("a\tx\nb y\n")
    refused("train, line 2: expected a label, a tab and a text")
    (tmp_path / "train").write_text("a\tx\na\ty\n")
    refused("data: expected at least 2 labels in the training part, received 'a'")
    (tmp_path / "train").write_text("a\tx\nc\ty\n")
    refused("data: expected labels of the training part in the validation part, received 'b'")
    (tmp_path / "train").rename(tmp_path / "contest_train")
    (tmp_path / "test").unlink()
    refused("a file of its own for each part in .*, the name 'contest_train' contains both 'train' and 'test'")
    for settings, message in (
        ({"validation": 1.0}, r"data\.validation: expected null or a number in \(0, 1\), received 1.0"),
        ({"train_fraction": 0.0}, r"data\.train_fraction: expected a number in \(0, 1\], received 0.0"),
        ({"download": True}, r"data\.download: expected false"),
    ):
        refused(message, **settings)


def test_a_comparison_notices_another_checkpoint(folder: Path, listener, tmp_path: Path) -> None:
    changes = [*SMALL, f"model.checkpoint={folder}", f"data.tokenizer={folder}", "training.epochs=1"]
    recipe = read_recipe("toy-text-classification", None, changes)
    compare(recipe, ["none"], 1, tmp_path, listener)
    request = read_run(tmp_path / "runs" / "none" / "seed0").request
    assert request.recipe["model"]["checkpoint_sha256"] == on_this_machine(recipe).model.checkpoint_sha256
    config = folder / "config.json"
    before = config.read_text()
    config.write_text(before.replace("0.25", "0.5"))
    try:
        with pytest.raises(ad.AttentionDropError, match=r"model.checkpoint_sha256 (differs|\w+ -> )"):
            compare(recipe, ["none"], 1, tmp_path, listener)
        pinned = read_recipe("toy-text-classification", None, [*changes, "model.checkpoint_sha256=abc"])
        with pytest.raises(ArgumentError, match=r"model.checkpoint: expected .* with the SHA-256 abc, found "):
            on_this_machine(pinned)
    finally:
        config.write_text(before)
