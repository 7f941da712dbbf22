"""The set-up of these tests themselves: whose warnings are errors, and what happens where a package is missing."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from attentiondrop.errors import AttentionDropWarning, warn_once

ROOT = Path(__file__).parent.parent


def warn_from(module: str, category: type[Warning] = UserWarning) -> None:
    warnings.warn_explicit("said", category, "file.py", 1, module=module)


@pytest.mark.parametrize("module", ["attentiondrop", "attentiondrop.torch.attach"])
@pytest.mark.parametrize("category", [UserWarning, DeprecationWarning, RuntimeWarning])
def test_a_warning_from_our_own_module_is_an_error(module: str, category: type[Warning]) -> None:
    with pytest.raises(category, match="said"):
        warn_from(module, category)


@pytest.mark.parametrize("module", ["torch.jit._script", "triton.runtime", "attentiondrop_of_others"])
def test_a_warning_from_elsewhere_is_only_shown(module: str) -> None:
    with warnings.catch_warnings(record=True) as caught:  # This leaves the filters as they are.
        warn_from(module)
        warn_from(module, DeprecationWarning)
    assert [str(warning.message) for warning in caught] == ["said", "said"]


def test_our_own_warning_is_an_error_wherever_it_points() -> None:
    with pytest.raises(AttentionDropWarning, match="rarely wanted"):
        warn_once("a topic of this test", "rarely wanted")  # It points at this line, which is not in the package.


def test_searches_for_garbage_leave_out_what_was_imported_and_find_what_a_test_makes() -> None:
    made = [object()]
    searched = gc.get_objects()
    assert gc.isenabled() and not any(each is sys.modules for each in searched)
    assert any(each is made for each in searched)


def test_a_missing_package_is_named_and_a_broken_import_fails(tmp_path: Path) -> None:
    (tmp_path / "test_ray.py").write_text("import sys\nsys.modules['ray'] = None\nimport ray.tune\n")
    (tmp_path / "test_ours.py").write_text("import attentiondrop.nothing\n")
    (tmp_path / "test_typo.py").write_text("import hypothesiss\n")
    shutil.copy(ROOT / "conftest.py", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "needs ray, which is not installed" in done.stdout
    assert "No module named 'attentiondrop.nothing'" in done.stdout
    assert "No module named 'hypothesiss'" in done.stdout
    assert "1 skipped, 2 errors" in done.stdout


FAKE_PYTHON = """#!/bin/sh
echo "$PYTHONPATH | $*" >> {log}
case "$*" in *{without}*) exit 1;; *"import os, xdist"*) echo "-n 4";; esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target, marks", [("test-gpu", "gpu and not slow"), ("test-gpu-all", "gpu")])
def test_the_gpu_tests_take_a_python_that_has_torch_with_cuda(tmp_path: Path, target: str, marks: str) -> None:
    python, log, venv = tmp_path / "fake_python", tmp_path / "log", tmp_path / "venv"
    python.write_text(FAKE_PYTHON.format(log=log, without="nothing"))
    python.chmod(0o755)
    subprocess.run(["make", target, f"PYTHON={python}", f"VENV={venv}"], cwd=ROOT, capture_output=True, check=True)
    calls = log.read_text().splitlines()
    assert calls[-1].startswith(f"{ROOT / 'src'} | -m pytest tests -m {marks} ") and calls[-1].endswith(" -n 4")
    assert not venv.exists() and not any("pip" in call or "venv" in call for call in calls)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_gpu_tests_set_up_an_environment_otherwise(tmp_path: Path) -> None:
    python, log, venv = tmp_path / "fake_python", tmp_path / "log", tmp_path / "venv"
    python.write_text(FAKE_PYTHON.format(log=log, without="cuda.is_available"))
    python.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    shutil.copy(python, tmp_path / "python")
    command = ["make", "test-gpu", f"PYTHON={python}", f"VENV={venv}"]
    assert subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False).returncode
    assert any(f"-m venv {venv}" in call for call in log.read_text().splitlines())
    assert "-m pytest" not in log.read_text()
