"""Gaussian distributions over the query and key projections of a model: the posterior of `posterior_certificate`.

They are implemented as forward hooks, so the parameters of the model do not change. All weights of one output of a
layer have the same deviation. So every example of a batch can have its own weights at little cost: for N x I inputs X
of one example and an I x O matrix E of independent normals, X E has the same distribution as R^T Z. R comes from the QR
decomposition of X^T, and Z has only as many rows as there are tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ArgumentError

_FUSED = ("qkv",)
_SEPARATE = ("q", "k", "q_proj", "k_proj", "query", "key", "to_q", "to_k", "q_lin", "k_lin")


class Projection(NamedTuple):
    """A linear layer whose first `rows` outputs are queries or keys."""

    name: str
    layer: nn.Linear
    rows: int


def query_key_projections(model: nn.Module) -> list[Projection]:
    """The linear layers that compute queries and keys, found by their usual names; an error if there are none.

    Of a fused `qkv`, the first two thirds of the outputs count. `nn.MultiheadAttention` is not found: its projections
    are a bare parameter, and no hook can change that.
    """
    found: list[Projection] = []
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if not isinstance(module, nn.Linear):
            continue
        if last in _FUSED and module.out_features == 3 * module.in_features:
            found.append(Projection(name, module, 2 * module.in_features))
        elif last in _SEPARATE:
            found.append(Projection(name, module, module.out_features))
    if not found:
        names = ", ".join((*_FUSED, *_SEPARATE))
        raise ArgumentError(
            f"model: expected linear layers called {names}, received {type(model).__name__} without any"
        )
    return found


class GaussianWeights(nn.Module):
    """Independent Gaussians N(w + shift, std^2) over the chosen weights w; the prior is N(w, prior_std^2).

    The prior deviation of a layer is `prior_scale` divided by the root of its number of inputs.
    """

    def __init__(self, projections: list[Projection], prior_scale: float) -> None:
        super().__init__()
        self.projections = [(entry.name, entry.rows) for entry in projections]
        self.prior_stds = [prior_scale / math.sqrt(entry.layer.in_features) for entry in projections]
        like = [entry.layer.weight.detach()[: entry.rows] for entry in projections]
        self.shifts = nn.ParameterList([torch.zeros_like(weight) for weight in like])
        #: [rows, 1]: one deviation for all weights of an output.
        self.log_stds = nn.ParameterList(
            [torch.full_like(weight[:, :1], math.log(std)) for weight, std in zip(like, self.prior_stds, strict=True)]
        )

    def kl(self) -> Tensor:
        """KL(posterior || prior) in closed form, in float64."""
        total = torch.zeros((), dtype=torch.float64, device=self.shifts[0].device)
        for shift, log_std, prior_std in zip(self.shifts, self.log_stds, self.prior_stds, strict=True):
            log_ratio = log_std.double() - math.log(prior_std)
            moved = (shift.double() / prior_std).square()
            total = total + (0.5 * (torch.exp(2 * log_ratio) - 1 + moved) - log_ratio).sum()
        return total

    @contextmanager
    def on(self, model: nn.Module, draw: Literal["example", "call"] | None) -> Iterator[None]:
        """Inside this context, `model` uses weights drawn for each example, or for each call, or the means (None).

        One draw per call is for training, which does not need independent draws; it has gradients.
        """
        batch: list[int] = []
        drawn: set[str] = set()

        def begin(module: nn.Module, inputs: Any) -> None:
            batch[:] = [len(inputs[0])]
            drawn.clear()

        handles = [model.register_forward_pre_hook(begin)]
        modules = dict(model.named_modules())
        for (name, rows), shift, log_std in zip(self.projections, self.shifts, self.log_stds, strict=True):

            def add(
                module: nn.Module,
                inputs: Any,
                output: Tensor,
                name: str = name,
                rows: int = rows,
                shift: Tensor = shift,
                log_std: Tensor = log_std,
            ) -> Tensor:
                x: Tensor = inputs[0]
                if len(x) != batch[0]:
                    raise ArgumentError(
                        "model: expected attention over whole examples, received one whose projections see "
                        f"{len(x)} sequences for {batch[0]} examples"
                    )
                weight = shift if draw != "call" else shift + torch.randn_like(shift) * log_std.exp()
                extra = F.linear(x, weight)
                if draw == "example":
                    if name in drawn:
                        # The second use would get other weights, and `kl` counts only one set of them.
                        raise ArgumentError(
                            "model: expected one that uses each query and key projection once in a pass, received one "
                            f"that uses {name} again"
                        )
                    drawn.add(name)
                    extra = extra + _own_noise(x, rows) * log_std.exp().squeeze(1)
                return output + F.pad(extra, (0, output.shape[-1] - rows))

            handles.append(modules[name].register_forward_hook(add))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _own_noise(x: Tensor, outputs: int) -> Tensor:
    """`x @ E` for [B, ..., I] inputs and a matrix E [I, outputs] of independent normals for each example."""
    tokens = x.reshape(len(x), -1, x.shape[-1])
    factor = torch.linalg.qr(tokens.mT, mode="r").R
    normals = torch.randn(len(x), factor.shape[-2], outputs, device=x.device, dtype=x.dtype)
    noise: Tensor = (factor.mT @ normals).reshape(*x.shape[:-1], outputs)
    return noise
