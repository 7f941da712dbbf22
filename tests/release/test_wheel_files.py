"""The wheel and the source distribution have all files that the library needs. Built here, without a network."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "attentiondrop"
BUILD = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1])); print(b.build_sdist(sys.argv[1]))"


def package_files() -> set[str]:
    """Every file of the package, Python or not."""
    found = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-c", BUILD, folder], cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def test_the_wheel_has_every_file_of_the_package_and_no_other(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[0]).namelist()
    inside = {name.removeprefix("attentiondrop/") for name in names if name.startswith("attentiondrop/")}
    assert inside == package_files()
    for needed in (
        "py.typed",
        "recipes/digits.yaml",
        "experiments/report/templates/page.html",
        "experiments/report/style.css",
        "torch/kernels/short/cuda/forward.cu",
        "torch/kernels/short/cuda/layout.cuh",
    ):
        assert needed in inside
    rest = [name for name in names if not name.startswith("attentiondrop/")]
    assert all(".dist-info/" in name for name in rest)
    assert any(name.endswith("licenses/LICENSE") for name in rest)


def test_the_wheel_says_what_it_needs(built: tuple[Path, Path]) -> None:
    archive = zipfile.ZipFile(built[0])
    metadata = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA"))
    assert "Requires-Python: >=3.11" in metadata
    assert [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line] == [
        "Requires-Dist: numpy>=1.26"
    ]
    scripts = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "attentiondrop = attentiondrop.cli.main:main" in scripts


def test_the_source_distribution_has_package_tests_and_examples(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/attentiondrop/{name}" for name in package_files()} <= names
    for needed in ("pyproject.toml", "README.md", "CHANGELOG.md", "CITATION.cff", "constraints.txt", "conftest.py"):
        assert needed in names
    assert any(name.startswith("tests/") for name in names) and any(name.startswith("examples/") for name in names)
