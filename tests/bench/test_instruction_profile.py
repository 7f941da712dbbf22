"""The count of machine instructions: how often loops run, what an instruction is for, and one method from end to end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from attentiondrop.bench.shapes import Shape

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("triton")
    monkeypatch.syspath_prepend(str(FOLDER))
    import instruction_profile

    return instruction_profile


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [64, 577, 1024])
@pytest.mark.parametrize("rows, columns", [(128, 64), (64, 32), (64, 64)])
def test_the_sweeps_visit_every_tile_that_is_seen(profile, length: int, rows: int, columns: int, causal: bool) -> None:
    shape = Shape(1, 2, length, 64, causal, key_heads=1)
    row_tiles, key_tiles = range(0, length, rows), range(0, length, columns)
    seen = [(row, key) for row in row_tiles for key in key_tiles if not causal or key < min(length, row + rows)]
    whole = [(row, key) for row, key in seen if key + columns <= length and (not causal or key + columns <= row + 1)]
    turns = profile.turns_by_rows(shape, rows, columns)
    assert [turn * len(row_tiles) for turn in turns] == pytest.approx([len(whole), len(seen) - len(whole)])
    # Each key head serves two query heads.
    assert sum(profile.turns_by_keys(shape, rows, columns)) * len(key_tiles) == pytest.approx(2 * len(seen))


def test_what_an_instruction_is_for(profile) -> None:
    logits = FOLDER.parent / "src" / "attentiondrop" / "torch" / "kernels" / "shared" / "logits.py"
    line = next(
        number for number, text in enumerate(logits.read_text().splitlines(), 1) if "dropped & (s >= low)" in text
    )

    def kind(text: str, file: str = "forward.py", line: int = 1) -> str:
        return profile.Instruction(text, file, line).kind

    assert kind("@!P0 MUFU.EX2 R0, R1") == "exp"
    assert kind("HGMMA.64x64x16.F32.BF16 R8, gdesc[UR4], R8") == "matrix"
    assert kind("LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64]") == kind("STSM.16.M88.4 [R1], R4") == "memory"
    assert kind("LDC R1, c[0x0][0x28]") == kind("SEL R1, R2, R3, P0") == kind("REDUX.OR UR4, R1") == "other"
    assert kind("FADD R1, R2, R3") == "float"
    assert kind("FSETP.GE.AND P0, PT, R1, R2, PT", str(logits), line) == "draws"
    assert kind("FMNMX R1, R2, R3, !PT", "candidates.py") == "k largest"


@pytest.mark.slow
def test_one_method_from_end_to_end() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, str(FOLDER / "instruction_profile.py"), "--shape", "2,2,577,64"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [*command, "--methods", "nothing", "attndropout"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("Least time")
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in first.splitlines() if "_kernel |" in line]
    assert [row[:2] for row in rows] == [
        [method, f"{name}_kernel"] for method in ("nothing", "attndropout") for name in ("forward", "query", "key")
    ]
    names = "all", "matrix", "exp", "float", "draws", "largest", "memory", "convert", "other"
    for row in rows:
        counts = dict(zip(names, map(int, row[6:15]), strict=True))
        assert counts["all"] == sum(counts.values()) - counts["all"]
        assert counts["matrix"] > 0 and counts["largest"] == 0
        rows_of_tile, keys_of_tile = map(int, row[2].split("x"))
        logits = rows_of_tile * keys_of_tile // 128  # of a lane
        assert logits <= counts["exp"] <= logits + 8
        assert counts["draws"] == 0 if row[0] == "nothing" else counts["draws"] >= 3 * logits - 8
    assert second.count("_kernel") == 6


#: Compiles the kernels of a call for the smallest GPUs that are supported, and prints the shared memory of each.
SHARED_MEMORY = """
import instruction_profile as profile
from attentiondrop.bench.shapes import Shape
from triton.backends.compiler import GPUTarget
profile._Driver.get_current_target = lambda self: GPUTarget("cuda", 86, 32)
profile.read = lambda name, cubin, threads, shared, *more: print(name, shared)
for size in (64, 128, 256):
    list(profile.triton_kernels(Shape(1, 1, 577, size), "dropkey"))
"""


@pytest.mark.slow
def test_small_gpus_have_enough_shared_memory() -> None:
    """Consumer GPUs (sm_86, sm_89, sm_120) have 99 KiB for a block."""
    pytest.importorskip("triton")
    asked = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path]), "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", SHARED_MEMORY], env=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _ in found} == {"forward_kernel", "query_kernel", "key_kernel"} and len(found) == 9
    assert all(int(shared) <= 99 * 1024 for _, shared in found), done.stdout
