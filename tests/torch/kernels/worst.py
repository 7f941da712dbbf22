"""The largest errors over a grid of situations, and what is allowed."""

from __future__ import annotations

from typing import Any

import torch
from parity import Case, errors

import attentiondrop as ad
from attentiondrop.specs import Spec


class Worst:
    """The largest error of each tensor over a grid of situations, for the fused path and for what it is measured by.

    That is the eager path, and in 16 bits also plain SDPA on the same inputs: every fused attention rounds its weights and
    the gradient of its logits to 16 bits, and finds delta from a rounded output, where eager rounds once, at the end.
    """

    def __init__(self, on_library: bool = False) -> None:
        #: What corrects the results of torch's own attention is no more exact than these. (On a CPU with AVX-512 its
        #: exponential is an approximation, so that it is less exact than eager attention in float32.)
        self.on_library = on_library
        self.known: dict[Any, float] = {}
        self.fused: dict[Any, float] = {}

    def add(self, spec: Spec, case: Case, dtype: torch.dtype, device: str, **options: Any) -> None:
        """Count a situation, for both."""
        eager = self.add_known(spec, case, dtype, device, **options)
        for name, error in errors(spec, case, dtype, "fused", device, **options).items():
            # An eager error of 0 is a gradient that vanishes, and the error absolute: terms of size 1 that cancel.
            assert eager[name] > 0 or error <= 16 * torch.finfo(dtype).eps, (str(spec), str(case), dtype, name, error)
            if eager[name] > 0:
                self.fused[dtype, name] = max(self.fused.get((dtype, name), 0.0), error)

    def add_known(self, spec: Spec, case: Case, dtype: torch.dtype, device: str, **options: Any) -> dict[str, float]:
        """Count a situation for what the fused path is measured by alone, which compiles nothing; the eager errors."""
        eager = errors(spec, case, dtype, "eager", device, **options)
        exact = dtype == torch.float32 and not self.on_library
        library = eager if exact else errors(ad.DropHead(0.0), case, dtype, "fused", device)
        for name, error in eager.items():
            if error > 0:
                key = dtype, name
                self.known[key] = max(self.known.get(key, 0.0), error, library[name])
        return eager

    def check(self) -> None:
        for (dtype, name), error in self.fused.items():
            allowed = 2 * max(self.known[dtype, name], torch.finfo(dtype).eps / 4)
            assert error <= allowed, (dtype, name, error, allowed)


def dtypes(device: str) -> list[torch.dtype]:
    # The interpreter multiplies bfloat16 matrices wrongly.
    return [torch.float32, torch.float16, torch.bfloat16] if device == "cuda" else [torch.float32, torch.float16]
