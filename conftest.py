"""What is collected, which packages it may do without, and which of our warnings are errors."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import sys
from collections.abc import Iterator

import pytest

# As `make test` does: processes that tests start have one thread, and a sum over more threads has other last bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A process has one Keras backend, so its tests and doctests run apart: `KERAS_BACKEND=jax pytest tests/keras`.
collect_ignore = [] if os.environ.get("KERAS_BACKEND") else ["tests/keras", "src/attentiondrop/keras"]

#: Of the extras in pyproject.toml, by the names under which they are imported.
OPTIONAL = {
    "PIL", "accelerate", "filelock", "hypothesis", "jax", "keras", "keras_hub", "lightning", "matplotlib", "ml_dtypes",
    "mpmath", "playwright", "ray", "rich", "sacrebleu", "sacremoses", "safetensors", "scipy", "sklearn", "tensorboard",
    "tensorflow", "timm", "tokenizers", "torchmetrics", "torchvision", "transformers", "triton", "wandb", "yaml",
}  # fmt: skip

#: How many modules were loaded whenever `set_aside_what_stays` acted.
_LOADED = [0]


def pytest_configure(config: pytest.Config) -> None:
    """Our own warnings are errors, wherever they point, unless a test expects them."""
    # Here rather than in pyproject.toml: from there, pytest would import the package before coverage looks on.
    config.addinivalue_line("filterwarnings", "error::attentiondrop.errors.AttentionDropWarning")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a GPU, `slow_on_gpu` means `slow`."""
    for item in items:
        if item.get_closest_marker("slow_on_gpu") and item.get_closest_marker("gpu"):
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Without the garbage collector: nearly all that is imported stays, and it would be searched again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def set_aside_what_stays() -> None:
    """Later searches for garbage leave out what was there before the tests of a file: above all, imported packages.

    Trainers and recorders of CUDA graphs search everything at each start, which takes a second with all packages
    loaded. pytest does so five times at its end.
    """
    # Again after many more imports, and after a study that was run here has made everything free.
    if gc.get_freeze_count() and len(sys.modules) < _LOADED[-1] + 100:
        return
    _LOADED.append(len(sys.modules))
    gc.collect()
    gc.freeze()
    # At the end of the process it must be free again: Triton's library prints a complaint otherwise.
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):  # type: ignore[no-untyped-def]
    """A module that needs an optional package that is not installed is skipped, and the reason names it."""
    report = yield
    call = getattr(report, "call", None)
    if report.failed and call is not None and (package := missing_package(call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = str(collector.path), None, f"Skipped: needs {package}, which is not installed"
    return report


def missing_package(error: BaseException | None) -> str | None:
    """The optional package whose absence led to `error`, if that is the reason."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            package = (error.name or "").partition(".")[0]
            # A package that is there, but lacks the module, is no package that is missing.
            return package if package in OPTIONAL and importlib.util.find_spec(package) is None else None
        error = error.__cause__ or error.__context__
    return None
