"""One training run, as a plain loop. Runs of one seed start from the same weights and see the same batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .data.dataset import Dataset
from .methods import Method
from .models import vit
from .recipe import Recipe


@dataclass(frozen=True)
class Trained:
    """A trained model, what its training looked like and how long it took."""

    model: nn.Module
    #: The mean loss of each epoch; shorter than the recipe says when the loss stopped being a number.
    losses: list[float]
    seconds: float

    @property
    def diverged(self) -> bool:
        """Whether the loss stopped being a number."""
        return not math.isfinite(self.losses[-1])


def train(
    method: Method, seed: int, recipe: Recipe, data: Dataset, on_epoch: Callable[[int], None] = lambda done: None
) -> Trained:
    """Train a new model with `method`; `on_epoch` hears how many epochs are done. `data` is on the recipe's device."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if recipe.device == "cuda" else ()):
        model = initial_model(method, seed, data.classes).to(recipe.device)
        if method.spec is not None:
            from attentiondrop.torch import attach

            attach(model, method.spec)
        # From here on the global generator belongs to the perturbations, which differ in how much they draw.
        torch.manual_seed(seed)
        start = time.perf_counter()
        losses = _fit(model, seed, recipe, data, on_epoch)
        return Trained(model, losses, time.perf_counter() - start)


def initial_model(method: Method, seed: int, classes: int) -> nn.Module:
    """The model before training, on the CPU: the same weights for every method of one seed."""
    torch.manual_seed(seed)
    model: nn.Module = vit.build(classes, dropout=method.dropout or 0.0)
    return model


def batch_order(count: int, recipe: Recipe, seed: int) -> Iterator[tuple[Tensor, ...]]:
    """For each epoch the indices of its batches, from a generator of its own: the same for every method of one seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(recipe.epochs):
        yield torch.split(torch.randperm(count, generator=generator), recipe.batch_size)


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """A linear rise over the first `warmup` of all steps, then half a cosine down to zero."""
    rise = round(warmup * steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1.0 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def _fit(model: nn.Module, seed: int, recipe: Recipe, data: Dataset, on_epoch: Callable[[int], None]) -> list[float]:
    count = len(data.train_labels)
    steps = recipe.epochs * math.ceil(count / recipe.batch_size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, steps, recipe.warmup)
    )
    losses: list[float] = []
    model.train()
    for batches in batch_order(count, recipe, seed):
        total = torch.zeros((), device=recipe.device)
        for batch in batches:
            indices = batch.to(recipe.device)
            loss = cross_entropy(model(data.train_images[indices]), data.train_labels[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(batch)
        losses.append(total.item() / count)
        on_epoch(len(losses))
        if not math.isfinite(losses[-1]):
            break
    return losses
