"""What must hold for every model that `attach` reaches, written once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import attentiondrop as ad
from attentiondrop.specs import Spec
from attentiondrop.torch import attach

Run = Callable[[nn.Module], Tensor]


def gradients(model: nn.Module, run: Run, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    torch.manual_seed(seed)
    output = run(model)
    output.double().square().mean().backward()
    return output.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def check_model(
    model: nn.Module,
    run: Run,
    sites: int,
    checkpointing: Callable[[nn.Module], None] | None,
    spec: Spec | None = None,
    same_kernels: bool = True,
) -> None:
    """Everything that `attach` promises, on one model. `run` maps the model to a tensor that depends on attention.

    `same_kernels=False`: the model asks for other gradients under checkpointing, so SDPA picks another kernel, and
    results agree to rounding instead of bit for bit.
    """
    same = torch.equal if same_kernels else lambda a, b: torch.allclose(a, b, rtol=1e-4, atol=1e-6)
    spec = spec or ad.HardMasking(p=0.4, k=3)
    untouched = copy.deepcopy(model)
    state = copy.deepcopy(model.state_dict())
    keys, classes = list(model.state_dict()), [type(m) for m in model.modules()]
    buffers = [name for name, _ in model.named_buffers()]
    model.eval()
    with torch.no_grad():
        expected = run(model)

    attachment = attach(model, spec)
    assert len(attachment.sites) == sites, str(attachment)
    assert list(model.state_dict()) == keys and [name for name, _ in model.named_buffers()] == buffers
    untouched.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(run(model), expected), "evaluation changed"

    model.train()
    torch.manual_seed(1)
    first, second = run(model).detach(), run(model).detach()
    assert not torch.equal(first, second), "training output does not vary"
    output, grads = gradients(model, run, seed=1)
    assert torch.equal(output, first), "the same seed gave another output"
    assert all(g.isfinite().all() for g in grads.values())

    if checkpointing is not None:
        again = copy.deepcopy(model)
        checkpointing(again)
        recomputed, recomputed_grads = gradients(again, run, seed=1)
        assert same(recomputed, output), "checkpointing changed the output"
        assert recomputed_grads.keys() == grads.keys()
        assert all(same(recomputed_grads[n], grads[n]) for n in grads), "checkpointing changed the gradients"

    attachment.remove()
    assert [type(m) for m in model.modules()] == classes and not attachment.sites
    assert not any("attentiondrop" in name for m in model.modules() for name in vars(m))
    untouched.train()
    torch.manual_seed(1)
    restored = run(model).detach()
    torch.manual_seed(1)
    assert torch.equal(restored, run(untouched).detach()), "remove() did not restore training"
    model.eval().load_state_dict(state)  # training moved the statistics of BatchNorm
    with torch.no_grad():
        assert torch.equal(run(model), expected)


def check_compiled(
    model: nn.Module, run: Run, backend: str, spec: Spec | None = None, tolerance: float = 2e-5, fullgraph: bool = True
) -> None:
    """Compiled without a graph break equals eager with the same seed, through changes of the spec and removal."""
    torch._dynamo.reset()
    attachment = attach(model, spec or ad.HardMasking(p=0.4, k=3))
    model.train()
    compiled = torch.compile(run, backend=backend, fullgraph=fullgraph)

    def both(seed: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed)
        eager = run(model).detach()
        torch.manual_seed(seed)
        return compiled(model).detach(), eager

    def close(pair: tuple[Tensor, Tensor]) -> None:
        torch.testing.assert_close(*pair, rtol=tolerance, atol=tolerance)

    first = both(1)
    close(first)
    other = both(2)
    close(other)
    assert not torch.equal(first[0], other[0]), "a compiled model repeats its draws"
    attachment.update(ad.DropKey(p=0.5))
    changed = both(1)
    close(changed)
    assert not torch.allclose(changed[0], first[0]), "a change of the spec was not seen"
    attachment.remove()
    close(both(1))


def randomise(model: nn.Module, scale: float = 1.0) -> nn.Module:
    """Larger random weights: with the usual initialisation attention is nearly uniform and tests see nothing."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                fan = parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale / fan**0.5)
    return model


def first_tensor(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]
