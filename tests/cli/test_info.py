"""`attentiondrop info` on machines with and without GPUs."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from attentiondrop.cli import info
from attentiondrop.cli.main import main


def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], listed: str | None) -> tuple[str, str]:
    """The lines about the device and our kernels where nvidia-smi prints `listed`; None: it fails."""

    def ask(command: list[str], **options: Any) -> Any:
        if listed is None:
            raise subprocess.CalledProcessError(9, command)
        return SimpleNamespace(stdout=listed)

    monkeypatch.setattr(info.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(info.subprocess, "run", ask)
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    device, kernels = (next(line for line in lines if line.startswith(start)) for start in ("device: ", "our kernels"))
    return device.removeprefix("device: "), kernels.partition("keys: ")[2]


@pytest.mark.parametrize(
    "listed, first, kernels",
    [
        ("NVIDIA H200, 9.0\n", "NVIDIA H200; ", "used, for compute capability 9.0 (warpgroups in the backward"),
        ("NVIDIA A100, PCIe, 8.0\n", "NVIDIA A100, PCIe; ", "used, for compute capability 8.0 (single warps)"),
        ("NVIDIA H200, 9.0\nNVIDIA T4, 7.5\n", "NVIDIA H200; NVIDIA T4; ", "not used, since they need compute capab"),
        ("An old GPU\n", "An old GPU; ", "not used, since they need compute capability 8.0 and this GPU has 0.0"),
        ("", "", "not used, since there is no GPU"),
        (None, "", "not used, since there is no GPU"),
    ],
)
def test_gpus_and_who_computes_short_rows(
    listed: str | None,
    first: str,
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(info, "find_spec", lambda name: SimpleNamespace())
    device, found = told(monkeypatch, capsys, listed)
    assert device.startswith(first) and device.endswith(" cores") and device.count(";") == first.count(";")
    assert found.startswith(kernels)


def test_versions_of_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(info, "_PACKAGES", ("numpy", "no-such-package"))
    assert main(["info"]) == 0
    assert f"\nnumpy {numpy.__version__}, no-such-package not installed\n" in capsys.readouterr().out


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(info, "find_spec", lambda name: None if name == "cuda.bindings" else SimpleNamespace())
    assert told(monkeypatch, capsys, "NVIDIA H200, 9.0\n")[1].startswith("not used, since cuda-bindings is not")
