"""The pages of the site: their code runs as it stands, and what is generated for them is complete."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from documentation import DOCS, python_blocks, run_page

PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if path.relative_to(DOCS).parts[0] not in ("_build", "benchmarks", "examples")
)


@pytest.fixture
def site_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tests import `docs/site_pages`."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS))


@pytest.mark.parametrize(
    ("page", "packages"),
    [
        ("index.md", ["timm"]),
        ("faq.md", []),
        ("start/timm.md", ["timm", "sklearn"]),
        ("start/torchvision.md", ["torchvision", "sklearn"]),
        ("start/pytorch.md", ["sklearn"]),
        ("start/transformers.md", ["transformers", "accelerate"]),
        ("start/lightning.md", ["lightning", "sklearn"]),
    ],
)
def test_the_code_of_a_page_runs(
    page: str, packages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in packages:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)  # trainers write into the current folder
    assert python_blocks(page)
    run_page(page)


def test_python_blocks_are_python() -> None:
    for page in PAGES:
        for block in python_blocks(page):
            ast.parse(block.code, f"{page}:{block.line}")


def test_every_start_page_is_run() -> None:
    """Here, or in tests/keras."""
    run = {mark for parameters in test_the_code_of_a_page_runs.pytestmark for mark, _ in parameters.args[1]}
    starts = {page for page in PAGES if page.startswith("start/")} - {"start/index.md"}
    assert starts == {page for page in run if page.startswith("start/")} | {
        "start/keras-jax.md",
        "start/keras-tensorflow.md",
    }


@pytest.mark.usefixtures("site_pages")
def test_every_setting_of_a_recipe_has_a_type_a_default_and_a_meaning() -> None:
    from site_pages import recipe_reference

    from attentiondrop.experiments.config.recipe_files import shipped

    text = recipe_reference.settings()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert not [row for row in rows if "|  |" in row], "a field without a comment `#:` or an entry in its docstring"
    for row in (
        "| `training.epochs` | integer | `20` | Passes over the training part. |",
        "| `training.clip` | number or null | `null` |",
        "| `data.tokens` | text | `characters` | one of `characters`, `words`, `bpe`, `tokenizer`. |",
        "| `model.width` | integer | `32` | the size of a new model. |",
    ):
        assert row in text
    recipes = recipe_reference.recipes()
    assert all(f"| `{name}` |" in recipes and f"<summary>{name}.yaml" in recipes for name in shipped())
    assert (
        "| `cifar100` | CIFAR-100, 60,000 colour images of 32 x 32 pixels | `classification` | demo, **small**, paper |"
        in recipes
    )


@pytest.mark.usefixtures("site_pages")
def test_every_command_is_listed_with_its_arguments() -> None:
    from site_pages import command_reference

    from attentiondrop.cli.main import COMMANDS

    text = command_reference.commands()
    assert text.count("\n## `attentiondrop ") + 1 == len(COMMANDS)
    assert all(f"## `attentiondrop {name}`" in text for name in ("compare", "train", "show", "bench", "bench vit"))
    assert "| `--seeds` `SEEDS` |" in text and "--traceback" not in text and "%(default)s" not in text


def test_every_exit_code_is_on_the_page_of_commands() -> None:
    from attentiondrop.cli.main import main

    page = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    codes = re.findall(r"\b(\d+): ", main.__doc__ or "")
    assert len(codes) == 5 and all(f"| {code} | " in page for code in codes)


@pytest.mark.usefixtures("site_pages")
def test_every_method_has_a_picture_that_shows_a_change() -> None:
    pytest.importorskip("timm")
    pytest.importorskip("torchvision")
    pytest.importorskip("transformers")
    import numpy as np
    from site_pages.method_pictures import picture_of

    from attentiondrop.experiments.methods.catalogue import catalogue

    for one in catalogue():
        picture = picture_of(one.settings[0])
        if one.name in ("none", "longer"):
            assert picture is None
            continue
        before, after = np.asarray(picture.before), np.asarray(picture.after)
        assert before.shape == after.shape and np.isfinite(after).all(), one.name
        # Talking heads begin as the plain softmax, and adaptive spans nearly so.
        if one.name not in ("talkingheads", "adaptivespan"):
            assert np.abs(after - before).max() > 0.02 * np.abs(before).max(), one.name


@pytest.mark.usefixtures("site_pages")
def test_pictures_of_the_paper_show_what_the_specs_say() -> None:
    import numpy as np
    from site_pages.method_pictures import picture_of

    hard = picture_of("hard(p=0.1,k=5,fill=-inf)")
    gone = (np.asarray(hard.after) == 0) & (np.asarray(hard.before) > 0)
    assert gone.any() and gone.sum(axis=1).max() <= 5  # of k = 5 candidates in a row
    assert np.allclose(np.asarray(hard.after).sum(axis=1), 1)
    window = picture_of("window(radius=4)")
    apart = np.abs(np.subtract.outer(np.arange(16), np.arange(16)))
    assert (np.asarray(window.after)[1:, 1:][apart[1:, 1:] > 4] == 0).all()


@pytest.mark.usefixtures("site_pages")
def test_pictures_say_nothing_that_is_not_so() -> None:
    from site_pages.method_pictures import drawn, picture_of

    assert "The loss pulls them together." in picture_of("r-drop(weight=0.3,p=0.1)").about
    assert "nothing pulls them together" in picture_of("r-drop(weight=0.0,p=0.1)").about
    assert "<figure>" not in drawn("none", "longer")  # an empty box


@pytest.mark.usefixtures("site_pages")
def test_flow_charts_hold_every_node_and_arrow() -> None:
    from site_pages import flowcharts

    lines = ["flowchart LR", '  a["first<br>line"] --> b{or?}', "  b --> c[third]", "  d --> c"]
    labels, edges = flowcharts.read(lines)
    assert labels == {"a": "first<br>line", "b": "or?", "c": "third", "d": "d"}
    assert edges == [("a", "b"), ("b", "c"), ("d", "c")]
    boxes = flowcharts.placed(labels, edges)
    assert boxes["a"].y < boxes["b"].y == boxes["d"].y < boxes["c"].y
    assert boxes["b"].x + boxes["b"].width < boxes["d"].x
    drawn = flowcharts.picture(lines)
    assert drawn.count('class="arrow"') == 3 and ">first</text>" in drawn
    with pytest.raises(ValueError, match="expected A --> B"):
        flowcharts.read(["flowchart LR", "  a --- b"])


@pytest.mark.usefixtures("site_pages")
def test_lists_of_names_are_read_by_sphinx() -> None:
    from site_pages import other_libraries
    from sphinx.util.inventory import InventoryFile

    content = other_libraries.inventory("torch", other_libraries.CLASSES["torch"])
    found = InventoryFile.loads(content, uri=other_libraries.PLACES["torch"])
    assert found["py:class", "torch.Tensor"].uri.endswith("/docs/stable/tensors.html#torch.Tensor")


@pytest.mark.usefixtures("site_pages")
def test_a_new_page_is_in_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if nobody has named it in the index of its folder yet."""
    from site_pages import generated

    (tmp_path / "evidence").mkdir()
    (tmp_path / "results" / "first").mkdir(parents=True)
    (tmp_path / "evidence" / "index.md").write_text("claims\nThe first study <../results/first/README>\n")
    for page in ("evidence/claims.md", "evidence/study-2.md", "results/first/README.md", "results/first/report.md"):
        (tmp_path / page).touch()
    monkeypatch.setattr(generated, "DOCS", tmp_path)
    lines = generated.PARTS["other evidence"]().splitlines()
    assert lines[-3:] == ["study-2", "../results/first/report", "```"] and "claims" not in lines


@pytest.mark.usefixtures("site_pages")
def test_broken_links_are_found(tmp_path: Path) -> None:
    from site_pages.check_links import broken

    (tmp_path / "b.html").write_text('<h1 id="top">B</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="b.html#top">1</a><a href="#here" id="here">2</a><a href="https://example.org/x">3</a>'
        '<a href="b.html#gone">4</a><a href="c.html">5</a>'
    )
    assert broken(tmp_path) == ["index.html: b.html#gone", "index.html: c.html"]


@pytest.mark.slow
@pytest.mark.no_cover
def test_the_site_builds_without_a_warning_or_a_broken_link(tmp_path: Path) -> None:
    """Without the internet. It takes about half a minute."""
    import subprocess

    # (Lightning imports torch, which must come before the TensorFlow of Keras.)
    for package in ("sphinx", "myst_parser", "furo", "sphinx_gallery", "sphinx_copybutton", "lightning", "keras"):
        pytest.importorskip(package)
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-E", "-d", str(tmp_path / "read")]
    done = subprocess.run([*build, str(DOCS), str(tmp_path / "html")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    check = [sys.executable, str(DOCS / "site_pages" / "check_links.py"), str(tmp_path / "html")]
    assert subprocess.run(check, check=False).returncode == 0
    page = (tmp_path / "html" / "methods.html").read_text(encoding="utf-8")
    assert page.count("<figure>") >= 51 and "generated:" not in page
