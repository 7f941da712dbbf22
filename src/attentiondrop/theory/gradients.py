"""Gradients with and without perturbation, for the same examples: one per example, or one per mini-batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from .stochastic import frozen, quiet_vmap, refuse_batch_norm, seeded, vectorisable

#: `loss(model(inputs), labels)`, a mean over the batch.
Loss = Callable[[Any, Tensor], Tensor]
#: Layer name -> the gradients [units, entries] of all parameters of the layer.
ByLayer = dict[str, Tensor]

#: Up to this size, gradients are kept between the two passes over them; otherwise they are computed twice. A GPU
#: keeps more, up to half of its free memory.
KEPT_BYTES = 2**30
#: How many bytes of gradients are computed at once. A GPU gets more: starting the kernels of a small chunk takes longer
#: than running them. (Fixed numbers, because draws depend on them: the free memory must not change draws.)
CHUNK_BYTES, CUDA_CHUNK_BYTES = 2**28, 2**30


class Chunk(NamedTuple):
    """Some units (examples or mini-batches): their gradients without perturbation, and those of each draw."""

    base: ByLayer
    draws: list[ByLayer]


class PairedGradients:
    """The gradients of all units: mini-batches of `batch_size`, or single examples if that is None.

    Every iteration gives the same numbers.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        loss: Loss,
        batch_size: int | None,
        batches: int | None,
        draws: int,
        seed: int,
    ) -> None:
        refuse_batch_norm(model)
        self.loss, self.draws, self.seed = loss, draws, seed
        self.by_sample = batch_size is None
        self.inputs, self.labels = inputs, labels
        self.plain = copy.deepcopy(model).eval()
        self.perturbed = (vectorisable(model) if self.by_sample else frozen(model)).train()
        self.names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        generator = torch.Generator().manual_seed(seed)
        if batch_size is None:
            chunk_bytes = CUDA_CHUNK_BYTES if inputs.is_cuda else CHUNK_BYTES
            step = max(1, min(256, chunk_bytes // (4 * size * (draws + 1))))
            order = torch.arange(len(labels))
        elif batches is None:
            # Disjoint full mini-batches: a smaller one would have another variance.
            step, count = batch_size, len(labels) // batch_size
            order = torch.randperm(len(labels), generator=generator)[: count * batch_size]
        else:
            step = batch_size
            order = torch.randint(len(labels), (batches * batch_size,), generator=generator)
        self.units = len(order) if batch_size is None else len(order) // batch_size
        self._chunks = order.to(labels.device).split(step)
        #: Whether the second iteration computes nothing.
        self.keeps = 4 * size * (draws + 1) * self.units <= _kept_bytes(inputs.device)
        self._kept: list[Chunk] = []

    def __iter__(self) -> Iterator[Chunk]:
        if len(self._kept) == len(self._chunks):
            yield from self._kept
            return
        for index, chosen in enumerate(self._chunks):
            chunk = self._compute(index, self.inputs[chosen], self.labels[chosen])
            if self.keeps:
                self._kept.append(chunk)
            yield chunk

    def _compute(self, index: int, inputs: Tensor, labels: Tensor) -> Chunk:
        base = self._gradients(self.plain, inputs, labels, self.seed)
        first = self.seed + 1 + index * self.draws
        return Chunk(base, [self._gradients(self.perturbed, inputs, labels, first + j) for j in range(self.draws)])

    def _gradients(self, model: nn.Module, inputs: Tensor, labels: Tensor, seed: int) -> ByLayer:
        parameters: dict[str, Tensor] = {name: model.get_parameter(name) for name in self.names}
        with seeded(seed, inputs.device):
            if self.by_sample:
                found = self._of_samples(model, parameters, inputs, labels)
            else:
                value = self.loss(model(inputs), labels)
                listed = torch.autograd.grad(
                    value, list(parameters.values()), allow_unused=True, materialize_grads=True
                )
                found = {name: gradient[None] for name, gradient in zip(parameters, listed, strict=True)}
        layers: dict[str, list[Tensor]] = {}
        for name, gradient in found.items():
            layers.setdefault(layer_of(name), []).append(gradient.detach().float().flatten(1))
        return {layer: torch.cat(parts, dim=1) for layer, parts in layers.items()}

    def _of_samples(
        self, model: nn.Module, parameters: dict[str, Tensor], inputs: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        def loss(weights: dict[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
            return self.loss(functional_call(model, weights, (example[None],)), label[None])

        values = {name: parameter.detach() for name, parameter in parameters.items()}
        with quiet_vmap():
            found: dict[str, Tensor] = vmap(grad(loss), (None, 0, 0), randomness="different")(values, inputs, labels)
        return found


def _kept_bytes(device: torch.device) -> int:
    """How many bytes of gradients may be kept."""
    if device.type != "cuda":
        return KEPT_BYTES
    # What torch has reserved and does not use is free for us, but not for other processes, so CUDA does not count it.
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(KEPT_BYTES, free // 2)


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to: its name up to the first number, or its first part.

    >>> layer_of("blocks.3.attn.qkv.weight"), layer_of("patch_embed.proj.bias")
    ('blocks.3', 'patch_embed')
    """
    parts = name.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdecimal()), 0)
    return ".".join(parts[: number + 1])
