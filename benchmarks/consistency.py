"""The cost of a second view: forward and backward of each mode of `consistency_loss`, as ratios to a single pass.

python benchmarks/consistency.py [--device cuda] [--batch 64] [--dtype bfloat16] [--spec 'hard(p=0.1,k=5)'] [--compile]

The model is a vision transformer with a spec on its last layers. Every mode is checked first: loss and gradients
against explicit passes with the same draws. Rows take turns within every repeat, and ratios are taken within a repeat.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attentiondrop as ad
from attentiondrop.bench.clock import clock_for, peak_extra
from attentiondrop.bench.environment import environment
from attentiondrop.bench.quantiles import Quantiles, ratios
from attentiondrop.bench.records import FAILED, TIMED, Outcome, digits, ratio
from attentiondrop.bench.report import Report
from attentiondrop.torch import attach, consistency_loss, functional
from attentiondrop.torch.attach import attend as stacked
from attentiondrop.torch.attach.sites import site_of
from attentiondrop.torch.draws import draw_seed

SINGLE, PLAIN = "single pass", "single pass, nothing attached"
MODES = ("shared", "batch", "sequential")
CONSISTENCY = ad.Consistency(weight=0.5)
LIMIT = 1e-4
NOTES = (
    "fwd+bwd: forward, cross entropy (and KL), backward to all parameters, no optimiser; median and quantiles.",
    "/ single: the ratio to a single pass with the same attachment, within a repeat; median and 20 - 80 % quantiles.",
    "extra MiB: the most memory that fwd+bwd had allocated beyond weights and inputs; gradients count.",
)


@dataclass(frozen=True)
class ModeOutcome(Outcome):
    """A mode on one model."""

    model: str = ""
    batch: int = 0
    dtype: str = ""
    attached: str = ""
    compiled: bool = False
    step_ms_20: float | None = None
    step_ms: float | None = None
    step_ms_80: float | None = None
    ratio_20: float | None = None
    ratio: float | None = None
    ratio_80: float | None = None
    extra_mib: float | None = None
    memory_ratio: float | None = None

    headings = ("row", "status", "fwd+bwd ms", "20 - 80 %", "/ single", "extra MiB", "MiB / single")

    def cells(self) -> list[str]:
        """What the table shows, under `headings`."""
        return [
            self.row,
            self.status,
            digits(self.step_ms),
            f"{digits(self.step_ms_20)} - {digits(self.step_ms_80)}",
            ratio(self.ratio_20, self.ratio, self.ratio_80),
            digits(self.extra_mib),
            ratio(self.memory_ratio),
        ]


def main() -> int:
    """Check, time, write."""
    options = arguments()
    where = environment(options.device, options.commit)
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(options.model, num_classes=1000).to(options.device).train()
    layers = len(model.blocks)  # type: ignore[arg-type]
    first = layers - max(1, round(layers * options.share))
    pattern = {f"blocks.{index}.*": options.spec for index in range(first, layers)}
    attached = f"{options.spec} on the last {layers - first} of {layers} layers"
    images = torch.randn(options.batch, *model.default_cfg["input_size"], device=options.device)  # type: ignore[index]
    labels = torch.randint(1000, (options.batch,), device=options.device)

    # Otherwise cuDNN's convolutions round to TF32, in a way that depends on the batch size: the patches of mode "batch"
    # would differ from those of separate passes by more than the errors that are checked here.
    with attach(model, pattern), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        errors = {mode: check(model, images[:2], labels[:2], mode) for mode in MODES}
    print("checked against explicit passes: " + ", ".join(f"{mode} {error:.1g}" for mode, error in errors.items()))
    about = {
        "kind": "consistency",
        "model": options.model,
        "batch": options.batch,
        "dtype": options.dtype,
        "attached": attached,
        "compiled": options.compile,
    }
    check_text = "loss and gradients against explicit passes with the same draws, in float32"
    checks = {mode: {"check": check_text, "error": errors[mode], "error_limit": LIMIT} for mode in MODES}
    failed = [ModeOutcome(mode, status=FAILED, **about, **checks[mode]) for mode in MODES if not errors[mode] < LIMIT]
    rows = [PLAIN, SINGLE, *(mode for mode in MODES if errors[mode] < LIMIT)]
    seconds, extra = measure(model, pattern, images, labels, rows, options)
    outcomes = [
        outcome(row, seconds[row], seconds[SINGLE], extra[row], extra[SINGLE], about | checks.get(row, {}))
        for row in rows
    ]
    command = shlex.join(["python", "benchmarks/consistency.py", *sys.argv[1:]])
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"consistency-{where.slug}" + "-compiled" * options.compile
    report = Report(options.out, name, "Two views", command, NOTES, where)
    report.add(f"{options.model}, batch {options.batch}, {options.dtype}, {attached}", outcomes + failed)
    print(report.markdown.read_text(encoding="utf-8"))
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    """The options, with defaults that suit the machine."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if cuda else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--model", default="vit_base_patch16_224", help="a timm model with blocks")
    parser.add_argument("--batch", type=int, default=128 if cuda else 2)
    parser.add_argument("--dtype", default="bfloat16" if cuda else "float32", help="of the autocast")
    parser.add_argument("--spec", default="hard(p=0.1,k=5)")
    parser.add_argument("--share", type=float, default=0.25, help="of the layers that are attached, the last ones")
    parser.add_argument("--repeats", type=int, default=20 if cuda else 5)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where the source has no git")
    return parser.parse_args()


def measure(
    model: nn.Module,
    pattern: dict[str, str],
    images: Tensor,
    labels: Tensor,
    rows: list[str],
    options: argparse.Namespace,
) -> tuple[dict[str, list[float]], dict[str, int | None]]:
    """Seconds of each row in each repeat, and the memory of each."""
    dtype = getattr(torch, options.dtype)
    called: Any = torch.compile(model, dynamic=False) if options.compile else model
    clock = clock_for(options.device)

    def task(output: Tensor) -> Tensor:
        return F.cross_entropy(output, labels)

    def work(row: str) -> Callable[[], None]:
        def step() -> None:
            model.zero_grad(set_to_none=True)
            with torch.autocast(options.device, dtype, enabled=dtype != torch.float32):
                if row in (SINGLE, PLAIN):
                    loss = task(called(images))
                else:
                    loss = consistency_loss(called, images, task, CONSISTENCY, row).loss  # type: ignore[arg-type]
            loss.backward()

        return step

    seconds: dict[str, list[float]] = {row: [] for row in rows}
    extra: dict[str, int | None] = {}
    for repeat in range(options.repeats + 1):
        for row in rows:
            attachment = None if row == PLAIN else attach(model, pattern)
            if repeat == 0:
                work(row)()  # compiles, and fills the allocator's cache
                model.zero_grad(set_to_none=True)
                extra[row] = peak_extra(work(row), options.device)
            else:
                seconds[row].append(clock(work(row)))
            if attachment is not None:
                attachment.remove()
        print(f"repeat {repeat} of {options.repeats}", file=sys.stderr, flush=True)
    return seconds, extra


def outcome(
    row: str, seconds: list[float], base: list[float], extra: int | None, base_extra: int | None, about: dict[str, Any]
) -> ModeOutcome:
    """The numbers of a row."""
    time, relative = Quantiles.of([1000 * value for value in seconds]), ratios(seconds, base)
    return ModeOutcome(
        row,
        status=TIMED,
        repeats=len(seconds),
        step_ms_20=time.low,
        step_ms=time.middle,
        step_ms_80=time.high,
        ratio_20=relative.low,
        ratio=relative.middle,
        ratio_80=relative.high,
        extra_mib=None if extra is None else extra / 2**20,
        memory_ratio=extra / base_extra if extra and base_extra else None,
        **about,
    )


def check(model: nn.Module, images: Tensor, labels: Tensor, mode: str) -> float:
    """The largest relative error of the loss and of any gradient, in the Frobenius norm."""
    seeds: list[Tensor] = []

    def record(like: Tensor, *rest: Any) -> Tensor:
        seeds.append(draw_seed(like, *rest))
        return seeds[-1]

    def task(output: Tensor) -> Tensor:
        return F.cross_entropy(output, labels)

    where = functional if mode == "sequential" else stacked
    with drawing(where, record):
        found = gradients(model, consistency_loss(model, images, task, CONSISTENCY, mode).loss)  # type: ignore[arg-type]
    queue = iter(seeds)
    with drawing(where, lambda *_: next(queue)):
        if mode == "sequential":
            first, second = model(images), model(images)
        else:  # a plain pass over a batch of two groups, which share no draw
            stack = SimpleNamespace(views=CONSISTENCY.views, belongs=lambda *_: True, check=lambda *_: None)
            sites = [site for module in model.modules() if (site := site_of(module)) is not None]
            for site in sites:
                site.views, site.stacks = stack.views, (stack,)
            first, second = model(torch.cat([images] * stack.views)).chunk(stack.views)
            for site in sites:
                site.views, site.stacks = 1, ()
    logs = [F.log_softmax(output, -1) for output in (first, second)]
    apart = F.kl_div(logs[1], logs[0], log_target=True, reduction="batchmean")
    expected = gradients(model, task(first) + CONSISTENCY.weight * apart)
    return max(float((a - b).norm() / b.norm().clamp(min=1e-30)) for a, b in zip(found, expected, strict=True))


@contextmanager
def drawing(module: Any, draw: Callable[..., Tensor]) -> Iterator[None]:
    """Let `module` take its seeds from `draw`."""
    before, module.draw_seed = module.draw_seed, draw
    try:
        yield
    finally:
        module.draw_seed = before


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    """The loss and the gradients of all parameters."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


if __name__ == "__main__":
    sys.exit(main())
