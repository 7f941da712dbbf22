"""The rows that are compared. A row has a name, builds a function to time, and checks that function."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import AttentionDropError, BackendError
from ..parsing import parse
from ..specs import REGISTRY
from ..torch import attention
from . import listings
from .check import Trial, Verdict, average, compare, plain, quiet
from .shapes import Shape
from .tensors import Attend, Tensors

#: The kinds, in the order of the table.
PLAIN, DROPOUT, FLEX, PAPER, OURS = KINDS = ("plain", "dropout", "flex", "paper", "ours")

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}

#: Every regulariser of the library, at the rates of the paper.
SPECS = tuple(
    dict.fromkeys(
        [
            "blur(sigma_max=0.5)",
            "hard(p=0.1,k=5)",
            "hard(p=0.1,k=5,fill=-inf)",
            # Every other regulariser, with its defaults.
            *(str(cls()) for cls in REGISTRY.values() if cls.level in ("logits", "weights", "heads")),
        ]
    )
)

#: Rows that build the logits are skipped if the logits would need more bytes than this.
LOGIT_BUDGET = 24 * 2**30


class CannotRunError(AttentionDropError):
    """A row cannot run at a shape; the message says why."""


class Row(ABC):
    """One line of the table."""

    name: str
    kind: str

    @abstractmethod
    def build(self, shape: Shape, tensors: Tensors) -> Attend:
        """The function to time. What is prepared here from `tensors` is not timed. May raise `CannotRunError`."""

    @abstractmethod
    def check(self, trial: Trial) -> Verdict:
        """Check whether the function is right."""

    def path(self, shape: Shape, tensors: Tensors) -> str:
        """The path that the function takes ("fused" or "eager"); empty if there is only one."""
        return ""


class SdpaRow(Row):
    """`scaled_dot_product_attention`, with the backend that torch chooses or with a given one."""

    def __init__(self, backend: str | None = None, dropout: float = 0.0) -> None:
        words = ["SDPA", f"dropout {dropout:g}" if dropout else "", backend or ""]
        self.name = " ".join(filter(None, words))
        self.kind = DROPOUT if dropout else PLAIN
        self.backend, self.dropout = backend, dropout

    def build(self, shape: Shape, tensors: Tensors) -> Attend:
        """A given backend is called once, to learn whether torch refuses it, and why."""
        if self.backend == "math":
            refuse_large_logits(shape, itemsize=4, tensors=4)
        call = partial(_sdpa, causal=shape.causal, grouped=shape.grouped, dropout=self.dropout)
        if self.backend is None:
            return call
        backend = BACKENDS[self.backend]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return call(q, k, v)

        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                attend(*tensors.inputs)
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                raise CannotRunError(_why(error, [str(warning.message) for warning in heard])) from error
        return attend

    def check(self, trial: Trial) -> Verdict:
        """Plain attention is compared exactly, dropout on average."""
        return average(trial, self.dropout) if self.dropout else compare(trial, plain)


class ListingRow(Row):
    """A listing of the paper."""

    kind = PAPER

    def __init__(self, variant: str) -> None:
        self.hard = variant == "hard masking"
        self.function: Callable[..., Tensor] = listings.hard_masking if self.hard else listings.blur
        self.name = f"paper's {variant}"

    def build(self, shape: Shape, tensors: Tensors) -> Attend:
        """As printed in the paper."""
        refuse_large_logits(shape, tensors.q.dtype.itemsize, tensors=4 if self.hard else 6)
        return self._listing(shape)

    def check(self, trial: Trial) -> Verdict:
        """A listing makes its own draws, so its result is known only without randomness."""
        if self.hard:
            return quiet(trial, self._listing(trial.shape, p=-1.0), "rate 0")
        return quiet(trial, self._listing(trial.shape, sigma_max=1e-3), "sigma near 0")

    def _listing(self, shape: Shape, **rate: float) -> Attend:
        function = partial(self.function, causal=shape.causal, **rate)
        repeats = shape.heads // shape.key_heads
        if repeats == 1:
            return function
        return lambda q, k, v: function(q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1))


class OursRow(Row):
    """A regulariser of this library."""

    kind = OURS

    def __init__(self, text: str) -> None:
        self.spec = parse(text)
        self.name = str(self.spec)

    def build(self, shape: Shape, tensors: Tensors) -> Attend:
        """With `backend="auto"`, as a user would call it."""
        return partial(self._attention, shape=shape, backend="auto")

    def check(self, trial: Trial) -> Verdict:
        """Compare with the eager path: the same seed gives the same draws in every dtype and for the first samples."""
        against = 'backend="eager", same seed'
        return compare(trial, lambda part, _: partial(self._attention, shape=part, backend="eager"), False, against)

    def path(self, shape: Shape, tensors: Tensors) -> str:
        """Whether "auto" finds a fused path here."""
        try:
            with torch.no_grad():
                self._attention(*tensors.inputs, shape=shape, backend="fused")
        except BackendError:
            return "eager"
        return "fused"

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, *, shape: Shape, backend: str) -> Tensor:
        causal, grouped = shape.causal, shape.grouped
        return attention(q, k, v, self.spec, is_causal=causal, enable_gqa=grouped, backend=backend)  # type: ignore[arg-type]


def refuse_large_logits(shape: Shape, itemsize: int, tensors: int) -> None:
    """Refuse a function whose `tensors` tensors of the size of the logits would need too much memory."""
    needed = shape.logits * itemsize * tensors
    if needed > LOGIT_BUDGET:
        raise CannotRunError(f"its logits need about {needed >> 30} GiB, more than {LOGIT_BUDGET >> 30} GiB")


def one_line(message: str, most: int = 200) -> str:
    """The first line of an error message, without folders of this machine."""
    first = next((line.strip() for line in message.splitlines() if line.strip()), "no message")
    first = re.sub(r"(?<![\w.])(?:/[\w.+-]+)+/(?=[\w.+-])", "", first)
    return first if len(first) <= most else first[: most - 3] + "..."


def _sdpa(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, grouped: bool, dropout: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal, enable_gqa=grouped)


def _why(error: RuntimeError, heard: Sequence[str]) -> str:
    """Why torch refuses a backend. The reason is among its warnings, some of which are about other backends."""
    reasons = [text for text in heard if "kernel not used because" not in text and "runtime disabled" not in text]
    return one_line(reasons[0] if reasons else str(error)).partition(". ")[0].partition(" (Triggered")[0]
