"""The randomised predictor of a model: the model in training mode, with perturbations and dropout active.

A bound over n examples needs draws that no two examples share. But some values are drawn once per call: the sigma of a
blur, the choice of `OneOf`, the mask of DropConnect. So each example of a batch is a separate call, and `torch.func`
vectorises these calls.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import ArgumentError
from ..specs import BlurSmoothing, OneOf, Spec
from ..torch.attach.sites import Site, site_of
from ..torch.consistency.divergence import check_logits
from ..torch.consistency.loss import pick_logits
from ..validation import integer

#: Examples in one vectorised call; attention weights are held for all of them.
CHUNK = 64
#: The warning of `vmap` about an operator that is not ours.
_SLOW_OPERATOR = "There is a performance drop because we have not yet implemented .* rule for (?!attentiondrop::)"


class RandomisedPredictor:
    """A copy of `model` in training mode; every call makes new draws for each example."""

    def __init__(self, model: nn.Module) -> None:
        refuse_batch_norm(model)
        self.model = vectorisable(model).train()
        #: False once `torch.func` has failed on the model: then examples run one after the other.
        self.vectorised = True

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        """Logits [B, classes] for [B, ...]."""
        if self.vectorised:
            try:
                with quiet_vmap():
                    alone = vmap(self._alone, randomness="different", chunk_size=CHUNK)
                    found: Tensor = alone(inputs)
                    return found
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                self.vectorised = False
        return torch.stack([self._alone(example) for example in inputs])

    def _alone(self, example: Tensor) -> Tensor:
        return predictions(self.model, example[None])[0]


def predictions(model: nn.Module, inputs: Tensor) -> Tensor:
    """Logits [B, classes] in float32 or wider."""
    logits = check_logits(pick_logits(model(inputs)))
    if logits.ndim != 2 or len(logits) != len(inputs):
        raise ArgumentError(
            f"model: expected one that gives [{len(inputs)}, classes] for {len(inputs)} examples, received "
            f"{list(logits.shape)}"
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def frozen(model: nn.Module) -> nn.Module:
    """A copy that does not change while it is measured: adaptive rates and the importance of heads stay as they are."""
    own = copy.deepcopy(model)
    for site in sites_of(own):
        site.freeze()
    return own


def vectorisable(model: nn.Module) -> nn.Module:
    """A frozen copy whose attached sites use plain tensor operations, since our kernels do not support `vmap`."""
    own = frozen(model)
    for site in sites_of(own):
        site.backend = "eager"
    return own


@contextmanager
def quiet_vmap() -> Iterator[None]:
    """Settings that make `vmap` fast, and no warning from it about performance.

    Fused attention is off, since `vmap` would run it for one example at a time. oneDNN is off, since on ARM it is very
    slow for batches of small matrices, which a vectorised model mostly multiplies (docs/theory.md).
    """
    with warnings.catch_warnings():
        # It says that `vmap` runs an operator of the model for one example at a time: slower, but the result is right.
        # Our own operators are not excused: `draw_seed` has a rule for `vmap`, and no other one should run here.
        warnings.filterwarnings("ignore", message=_SLOW_OPERATOR)
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            yield


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore the training mode of every module at the end."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Make draws depend on `seed` only; the global generators are restored afterwards."""
    checked = integer("seed", seed, minimum=0)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(checked)
        yield


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter; the CPU if there is none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def refuse_batch_norm(model: nn.Module) -> None:
    """Refuse batch normalisation: in training mode, a prediction would depend on other examples of the batch."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ArgumentError(
                "model: expected one whose prediction for an example does not depend on the rest of the batch, "
                f"received batch normalisation in training mode ({name or type(module).__name__})"
            )


def sites_of(model: nn.Module) -> list[Site]:
    """The attached attention sites."""
    return [site for module in model.modules() if (site := site_of(module)) is not None]


def shares_draws(model: nn.Module) -> bool:
    """Whether something in the model is known to draw once per call instead of once per sample."""
    by_call = any(_by_call(part) for site in sites_of(model) for part in _parts(site.spec))
    # DropConnect masks weights, and torchvision's stochastic depth can skip a block, for a whole batch.
    return by_call or any(
        getattr(module, "connection_drop", 0.0) or (type(module).__name__, getattr(module, "mode", "")) == _BATCH_DEPTH
        for module in model.modules()
    )


_BATCH_DEPTH = ("StochasticDepth", "batch")


def _parts(spec: Spec) -> Iterator[Spec]:
    """The spec and all its parts."""
    yield spec
    for part in getattr(spec, "parts", ()):
        yield from _parts(part)


def _by_call(spec: Spec) -> bool:
    """Whether the spec draws something that all samples of a call share."""
    if isinstance(spec, OneOf):
        return True
    if spec.level in ("container", "model"):
        return False
    fixed = isinstance(spec, BlurSmoothing) and spec.sigma_min == spec.sigma_max
    return "batch" not in spec.draws.over and not fixed
