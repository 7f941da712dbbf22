"""The blur in the kernels for short rows, without a GPU: the whole kernels run on the CPU (see `emulation`)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from blur_cases import Setting, blurred, error
from emulation import COMPILER, DEVICES, Emulator
from torch import Tensor

from attentiondrop.torch.kernels.short import run_kernels
from attentiondrop.torch.kernels.short.plans import Plan, written

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


class Extras(NamedTuple):
    """What a call has beside queries, keys and values, in the order of the kernels' arguments."""

    seed: Tensor | None
    gate: None
    dropout_gate: None
    blur_gate: Tensor | None
    visible: Tensor | None


class Case(NamedTuple):
    """A blur, its sizes [B, H, N, D] and number of keys, and the kernel of the backward that serves it."""

    setting: Setting
    device: str
    shape: tuple[int, int, int, int]
    keys: int
    dtype: torch.dtype
    backward: str

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Extras]:
        """Queries, keys, values, a gradient, and the rest. Hidden keys are NaN, which nobody may notice."""
        torch.manual_seed(1)
        batch, heads, _, size = self.shape
        of_keys = batch, heads, self.keys, size
        q, k, v, grad = (torch.randn(x).to(self.dtype) for x in (self.shape, of_keys, of_keys, self.shape))
        seed, gate, visible = self.setting.tensors("cpu", batch, heads, self.keys)
        if visible is not None:
            k = k.masked_fill(~visible.mT, torch.nan)
        return q, k, v, grad, Extras(seed, None, None, gate, visible)

    def plan(self, radius: int) -> Plan:
        stream, sampling, low, high, _, renormalize, groups = self.setting.sigma_arguments()
        options = {"blur_stream": stream, "sampling": sampling, "sigma_min": low, "sigma_max": high, "groups": groups}
        return Plan(radius=radius, renormalize=renormalize, scale=self.shape[-1] ** -0.5, **options)

    def run(self, radius: int) -> list[Tensor]:
        """The output and the three gradients."""
        q, k, v, grad, extras = self.inputs()
        plan = written(self.plan(radius))
        output, notes = run_kernels.forward(q, k, v, *extras, plan)
        return [output, *run_kernels.backward(grad, q, k, v, output, notes, *extras, plan)]

    def expected(self) -> list[Tensor]:
        """The same in float64."""
        q, k, v, grad, extras = self.inputs()
        inputs = [x.double().nan_to_num().requires_grad_() for x in (q, k, v)]
        assert extras.seed is not None
        keys = blurred(inputs[1], self.setting, extras.seed, extras.blur_gate, extras.visible)
        logits = inputs[0] @ keys.mT * self.shape[-1] ** -0.5
        if extras.visible is not None:
            logits = logits.masked_fill(~extras.visible, -torch.inf)
        output = logits.softmax(-1).nan_to_num() @ inputs[2]
        return [output, *torch.autograd.grad(output, inputs, grad.double())]


BF16, FP16 = torch.bfloat16, torch.float16
#: Each kind of memory that keys come from, of ends, of widths and of weights.
CASES = {
    "one tile": Case(Setting(width=17), "A100", (3, 2, 9, 16), 13, BF16, "backward"),
    "masked": Case(
        Setting(7, renormalize=True, sampling="sample", visible="keys"), "A100", (4, 2, 20, 32), 50, BF16, "backward"
    ),
    "more tiles than warps": Case(Setting(9, visible="heads"), "H200", (2, 3, 40, 128), 250, BF16, "backward"),
    "several steps": Case(Setting(13, renormalize=True), "A10", (2, 2, 150, 64), 150, FP16, "backward"),
    "keys from registers": Case(Setting(5, visible="heads"), "H200", (3, 2, 40, 64), 120, BF16, "backward_wgmma"),
    "left-over tile": Case(Setting(17, sampling="head"), "H200", (2, 3, 40, 64), 197, FP16, "backward_wgmma"),
    "tiles made up to four": Case(
        Setting(7, True, "sample", visible="heads", gate=0.7), "H200", (3, 2, 20, 64), 150, BF16, "backward_wgmma"
    ),
    "several steps of warpgroups": Case(
        Setting(9, True, "head", visible="keys"), "H200", (3, 2, 150, 64), 256, BF16, "backward_wgmma"
    ),
    # Blocks have units of several groups. The sigmas are those of a compiled model: draws from 0 to 1 times a tensor.
    "groups": Case(Setting(5, groups=3, gate=2.0, sigma=(0.0, 1.0)), "A100", (6, 3, 9, 16), 40, BF16, "backward"),
    "groups of warpgroups": Case(Setting(5, True, groups=2), "H200", (4, 3, 40, 64), 120, BF16, "backward_wgmma"),
    "blind sample": Case(
        Setting(3, renormalize=True, visible="nothing"), "H200", (3, 2, 30, 64), 130, BF16, "backward_wgmma"
    ),
}
QUICK = {"masked", "left-over tile", "groups"}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_blur_is_that_of_float64(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    emulator = Emulator(tmp_path, DEVICES[case.device])
    emulator.install(monkeypatch)
    found = case.run(case.setting.width // 2)
    assert emulator.ran == ["forward", case.backward]
    for have, want in zip(found, case.expected(), strict=True):
        # What rounding keys, weights and gradients to 16 bits leaves: here up to 0.53.
        assert error(have, want) < 0.6 * torch.finfo(case.dtype).eps


@pytest.mark.parametrize("dtype", [FP16, pytest.param(BF16, marks=pytest.mark.slow)])
def test_sigma_of_zero_changes_nothing(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(Setting(5, sigma=(0.0, 0.0)), "A100", (2, 1, 20, 32), 40, dtype, "backward")
    Emulator(tmp_path, DEVICES[case.device]).install(monkeypatch)
    for blurred_by_zero, plain in zip(case.run(2), case.run(0), strict=True):
        assert torch.equal(blurred_by_zero, plain)


@pytest.mark.parametrize("dtype", [BF16, pytest.param(FP16, marks=pytest.mark.slow)])
def test_blurred_keys_are_rounded_once(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of a blur are as exact as float32. Rounded weights would change the last bit of many blurred keys."""
    case = Case(Setting(7, sigma=(1.0, 2.0), sampling="head"), "A100", (2, 2, 40, 32), 40, dtype, "backward")
    Emulator(tmp_path, DEVICES[case.device]).install(monkeypatch)
    q, k, v, _, extras = case.inputs()
    assert extras.seed is not None
    rounded = blurred(k, case.setting, extras.seed, None, None).to(dtype)
    have, _ = run_kernels.forward(q, k, v, *extras, written(case.plan(3)))
    want, _ = run_kernels.forward(q, rounded, v, *extras, written(case.plan(0)))
    assert (have == want).double().mean() > 0.95  # rounded weights: 0.55
