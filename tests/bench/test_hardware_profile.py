"""What Nsight Compute prints, read into the rows of a table."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"

#: As `ncu --csv --page raw` prints them: messages, names, units, and a line for each kernel.
WAIT, BUSY, MEMORY, CHOSEN = (
    f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    for reason in ("wait", "math_pipe_throttle", "long_scoreboard", "selected")
)
PRINTED = f"""==PROF== Connected to process 1
"ID","Kernel Name","gpu__time_duration.sum","launch__registers_per_thread","smsp__issue_active.avg.per_cycle_active","{WAIT}","{BUSY}","{MEMORY}","{CHOSEN}"
"","","us","register/thread","inst/cycle","inst","inst","inst","inst"
"9","a kernel before all cases","900","16","0.1","1","0","0","1"
"0","void at::native::erfinv_kernel(float)","1.5","16","0.1","1","0","0","1"
"1","forward_kernel","1,500.0","128","0.55","1.5","0.5","1","1"
"2","void at::native::(anonymous namespace)::fill<float>(int)","2.0","16","0.1","1","0","0","1"
"3","void at::native::erfinv_kernel(float)","1.5","16","0.1","1","0","0","1"
"4","cudnn_generated_sdpa_sm90_flash_bprop_64x128_kernel0","400","168","0.5","1","0","0","1"
"5","void cudnn::fusion::convert_dq<float>(float*)","100","30","nan","0","0","3","1"
"""


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import hardware_profile

    return hardware_profile


def test_kernels_belong_to_the_case_whose_mark_came_before_them(profile) -> None:
    cases = ["4,2,577,64 dropkey(p=0.1)", "4,2,577,64 plain"]
    kernels = list(profile.read_kernels(PRINTED.splitlines(), cases))
    rows = list(profile.rows_of(kernels, cases))
    # The kernel with less than 4 % of the time of its case is left out.
    assert [row[:4] for row in rows] == [
        ["4,2,577,64", "dropkey(p=0.1)", "forward_kernel", "1.500"],
        ["4,2,577,64", "plain", "cuDNN backward", "0.400"],
        ["4,2,577,64", "plain", "cuDNN convert_dq", "0.100"],
    ]
    assert rows[0][4:7] == ["128", "", "55"]
    # Shares of the time between two instructions, of which the instruction itself is no wait.
    assert rows[0][-1] == "wait 38%, long_scoreboard 25%, math_pipe_throttle 12%"


def test_times_may_come_in_other_units(profile) -> None:
    text = PRINTED.replace('"","","us"', '"","","msecond"').splitlines()
    kernel = next(profile.read_kernels(text, ["one", "two"]))
    assert kernel.microseconds == 1_500_000
    assert kernel.number("no such counter") != kernel.number("no such counter")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_case_runs(profile) -> None:
    for method in ("plain", "hard(p=0.1,k=5)"):
        profile.run_case(f"1,2,64,64,causal,1 {method}")
