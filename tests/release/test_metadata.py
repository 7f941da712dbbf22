"""Texts about a release agree with one another: version, changelog, citation, support matrix, CI."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import attentiondrop

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_names_this_version_and_the_paper() -> None:
    found = yaml.safe_load(read("CITATION.cff"))
    assert (found["cff-version"], found["version"]) == ("1.2.0", attentiondrop.__version__)
    paper = found["preferred-citation"]
    assert paper["title"] == "AttentionDrop: A Novel Regularization Method for Transformer Models"
    assert [author["family-names"] for author in paper["authors"]] == ["Baig", "Gillani", "Khan", "Shah", "Khan"]


def test_the_changelog_begins_with_this_version() -> None:
    first = re.search(r"^## (\S+)", read("CHANGELOG.md"), flags=re.MULTILINE)
    assert first is not None and first[1] in (attentiondrop.__version__, "Unreleased")


def test_the_support_matrix_has_the_versions_that_are_tested() -> None:
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", read("constraints.txt"), flags=re.MULTILINE))
    page = read("docs/support.md")
    for package in ("torch", "timm", "transformers", "keras", "tensorflow", "jax", "lightning", "numpy"):
        assert re.search(rf"^\| {package} \| {re.escape(pinned[package])} \|", page, flags=re.MULTILINE), package


def test_the_ci_runs_targets_that_exist_on_every_supported_python() -> None:
    workflow = yaml.safe_load(read(".github/workflows/ci.yml"))
    classifiers = re.findall(r"Python :: (3\.\d+)", read("pyproject.toml"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == classifiers
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    targets = {word for step in steps for word in re.findall(r"^make ([\w-]+)", step)}
    assert {"test", "demo", "docs"} == targets
    assert {target for target in targets if re.search(rf"^{target}:", read("Makefile"), flags=re.MULTILINE)} >= {
        "test",
        "demo",
    }
    for script in re.findall(r"tests/release/\w+\.py", " ".join(steps)):
        assert (ROOT / script).exists()
