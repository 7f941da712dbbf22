"""The full state of model, optimiser and method, as in a single process, even if processes share the weights (FSDP)."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast, gather_object, send_to_device
from torch import Tensor, nn

from ..methods.apply import Applied, with_own
from .finite_weights import are_finite

# `torch.distributed.checkpoint` takes a second to load, so it is loaded only where weights are split.


def is_sharded(accelerator: Accelerator) -> bool:
    """Whether each process holds only a part of the weights."""
    return bool(accelerator.distributed_type == DistributedType.FSDP)


def model_weights(accelerator: Accelerator, model: nn.Module) -> dict[str, Tensor]:
    """The `state_dict` of the unwrapped model. With FSDP every process must call this; only the main one gets it."""
    if is_sharded(accelerator):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_model_state_dict(model, options=whole)  # type: ignore[return-value]
    weights: dict[str, Tensor] = accelerator.unwrap_model(model).state_dict()
    return weights


def weights_are_finite(accelerator: Accelerator, model: nn.Module) -> bool:
    """Whether the weights are numbers in all processes. Every process must call this, and all get one answer.

    With FSDP each process looks at its own part, which may be empty: a maximum over processes would forget a NaN.
    """
    parts = [getattr(weight, "to_local", weight.detach)() for weight in model.parameters()]
    own = are_finite(part for part in parts if part.numel())
    if accelerator.num_processes == 1:
        return own
    spoilt = torch.tensor(float(not own), device=accelerator.device)
    return not accelerator.reduce(spoilt, "sum").item()


@torch.no_grad()
def take_stored_buffers(accelerator: Accelerator, model: nn.Module) -> None:
    """Give all processes the buffers of the main one, which are those that are stored. Every process must call this.

    Each process has followed its own data, as a batch norm does. Their scores would be those of several models.
    """
    for own in model.buffers() if accelerator.num_processes > 1 else ():
        stored = broadcast(own.clone(memory_format=torch.contiguous_format))
        if not torch.equal(stored, own):
            own.copy_(stored)


def full_state(accelerator: Accelerator, model: nn.Module, optimizer: Any, applied: Applied) -> dict[str, Any]:
    """What resuming needs of model, optimiser, gradient scaler and method. Every process must call this."""
    if is_sharded(accelerator):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # validation leaves it with whole weights, which the optimiser does not know
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        optimizer_state = get_optimizer_state_dict(model, optimizer.optimizer, options=whole)
    else:
        optimizer_state = optimizer.state_dict()
    scaler = None if accelerator.scaler is None else accelerator.scaler.state_dict()
    state = {"model": model_weights(accelerator, model), "optimizer": optimizer_state, "scaler": scaler}
    # Each process measures its own data: of this, the state of the main process is not that of the others.
    own = gather_object([send_to_device(applied.own_state(), "cpu")]) if accelerator.num_processes > 1 else []
    return state | {"applied": applied.state_dict(), "own": own}


def load_full_state(
    accelerator: Accelerator, model: nn.Module, optimizer: Any, applied: Applied, state: dict[str, Any]
) -> None:
    """Restore what `full_state` returned. With another number of processes, all get what the main one measured."""
    if is_sharded(accelerator):
        from torch.distributed.checkpoint import state_dict as split

        spread = split.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        split.set_model_state_dict(model, state["model"], options=spread)
        split.set_optimizer_state_dict(model, optimizer.optimizer, state["optimizer"], options=spread)
    else:
        accelerator.unwrap_model(model).load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    if accelerator.scaler is not None and state["scaler"] is not None:
        accelerator.scaler.load_state_dict(state["scaler"])
    of_all, own = state["applied"], state.get("own", [])  # older states have none
    applied.load_state_dict(
        with_own(of_all, own[accelerator.process_index]) if len(own) == accelerator.num_processes else of_all
    )
