"""Adaptive attention span: every head learns how far it looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....errors import bad_argument
from ....validation import number
from ..comparator import Acting
from ..other_attention import OtherAttention

if TYPE_CHECKING:
    from torch import Tensor, nn


class Spans(Acting):
    """Adds the mean span of each layer, in tokens and times a weight, to the loss; keeps spans within the sequence."""

    on_tensors = ("loss", "end_step")

    def __init__(self, spans: list[Any], penalty: float, tokens: int) -> None:
        self.spans, self.penalty, self.tokens = spans, penalty, tokens

    def loss(self, loss: Tensor) -> Tensor:
        """The loss with the penalty."""
        found: Tensor = loss + self.penalty * self.tokens * sum(span.mean() for span in self.spans)
        return found

    def end_step(self) -> None:
        """Spans are shares of the sequence."""
        for span in self.spans:
            span.detach().clamp_(0.0, 1.0)


@dataclass(frozen=True)
class AdaptiveSpan(OtherAttention):
    """Every head has a learned span z; keys beyond it fade out over `ramp` tokens. Long spans cost `penalty`."""

    ramp: float = 32.0
    penalty: float = 2e-6
    name = "adaptivespan"
    grid = [
        {"ramp": ramp, "penalty": penalty}
        for ramp, penalty in ((32.0, 2e-6), (2.0, 2e-6), (4.0, 2e-6), (8.0, 2e-6), (4.0, 1e-3), (8.0, 1e-3))
    ]
    formula = (
        "A = m exp(S) / sum_j m exp(S), m = clamp((ramp + z - |i - j|) / ramp, 0, 1); "
        "loss + penalty * sum over layers of the mean z"
    )
    reference = "Sukhbaatar et al. 2019, Adaptive Attention Span in Transformers"

    def _check(self) -> None:
        if not number("ramp", self.ramp, 0.0) > 0:
            raise bad_argument("ramp", "a number > 0", self.ramp)
        number("penalty", self.penalty, 0.0)

    def learned(self, heads: int) -> dict[str, Tensor]:
        """The span of each head as a share of the sequence; it begins at 0."""
        import torch

        return {"span": torch.zeros(heads)}

    def weigh(self, logits: Tensor, learned: Mapping[str, Tensor], prefix: int) -> Tensor:
        """The softmax, faded out with the distance."""
        from ..attention_maps import distances

        tokens = logits.shape[-1]
        reach = self.ramp + learned["span"].float()[:, None, None] * tokens
        seen = ((reach - distances(tokens, prefix, logits.device)) / self.ramp).clamp(0.0, 1.0)
        weights = logits.softmax(-1) * seen
        # A query always sees itself. The softmax may still give it 0 in float32.
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)

    def act(self, model: nn.Module) -> Acting:
        """What penalises the spans, in tokens."""
        from ..built_attention import weighed_attentions
        from ..vit_places import tokens_of

        spans = [attention.learned["span"] for attention in weighed_attentions(model)]
        return Spans(spans, self.penalty, tokens_of(model, self.name))
