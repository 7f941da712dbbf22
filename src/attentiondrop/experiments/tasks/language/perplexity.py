"""Score a language model on one part of the text."""

from __future__ import annotations

import math

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..eval_mode import evaluating
from ..interface import forward
from .token_data import IGNORED, TokenData

#: The perplexity of a larger loss is not a float any more.
_LARGEST_LOSS = 700.0


@torch.no_grad()
def scores_of_part(
    model: nn.Module, data: TokenData, part: str, batch_size: int, accelerator: Accelerator | None
) -> dict[str, float]:
    """Loss in nats for each token, perplexity, and bits for each byte of the text in UTF-8."""
    rank, world = (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)
    # A model is compiled for training. In eval mode or with another batch size it would be compiled again.
    call = model.forward if getattr(model, "_compiled_call_impl", None) is not None else model
    sums = torch.zeros(2, dtype=torch.float64, device=data.device)
    with evaluating(model):
        for inputs, targets in data.batches(part, batch_size, rank=rank, world=world):
            sums += torch.stack([summed_loss(forward(call, inputs).logits, targets), (targets != IGNORED).sum()])
    if accelerator is not None and world > 1:
        sums = accelerator.reduce(sums, "sum")
    total, count = sums.tolist()
    loss = total / count
    tokens_per_byte = len(data.tokens[part]) / data.bytes[part]
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, _LARGEST_LOSS)),
        "bits_per_byte": loss * tokens_per_byte / math.log(2),
    }


def summed_loss(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """The summed cross entropy of logits [B, N, V]. Targets `IGNORED` do not count."""
    return cross_entropy(
        logits.float().flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
