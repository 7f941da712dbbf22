"""A random spec: every regulariser with random fields, containers, and rates that change."""

from __future__ import annotations

from random import Random

from every_regulariser import examples

import attentiondrop as ad
from attentiondrop import schedules
from attentiondrop.schedules import Schedule
from attentiondrop.specs import Spec

#: Regularisers that get random fields.
KNOWN = (ad.HardMasking, ad.BlurSmoothing, ad.GaussianNoise, ad.DropKey, ad.DropHead, ad.AttentionDropout)


class SpecMaker:
    """Random specs for one model.

    `heads` is how many heads its attention has. `both_axes` says whether a blur may act along the queries, which a mask
    forbids that differs between rows. `attached` says whether rates may be such that only `attach` can evaluate.
    `fusible` asks for specs that mostly have a fused path: otherwise few of them would.
    """

    def __init__(self, random: Random, heads: int, both_axes: bool, attached: bool, fusible: bool) -> None:
        self.random, self.heads, self.both_axes = random, heads, both_axes
        self.attached, self.fusible = attached, fusible

    def spec(self) -> Spec:
        if self.fusible:
            return self._in_one_pass()
        kind = self.random.choices(["leaf", "compose", "oneof", "nested"], [5, 3, 2, 1])[0]
        if kind == "leaf":
            return self._leaf()
        if kind == "compose":
            parts = [self._leaf() for _ in range(self.random.choice([2, 2, 3]))]
            # Acts on the outputs of a model, not here: it must change nothing.
            parts += [ad.Consistency()] if self.random.random() < 0.2 else []
            return ad.Compose(parts)
        if kind == "oneof":
            return self._one_of([self._leaf() for _ in range(self.random.choice([2, 3]))])
        return ad.Compose([self._leaf(), self._one_of([self._leaf(), ad.Compose([self._leaf(), self._leaf()])])])

    def _in_one_pass(self) -> Spec:
        """One or two stages of a fused pass, in its order; two ways of dropping logits do not go together."""
        drop = self.random.choice([self._hard, self._drop_key])
        stages = [self._blur, self._noise, drop, drop, self._dropout, self._drop_head]
        places = sorted(self.random.sample(range(len(stages)), self.random.choice([1, 1, 2])))
        parts = [stages[place]() for place in places if place != 3 or 2 not in places]
        return parts[0] if len(parts) == 1 else ad.Compose(parts)

    def _one_of(self, parts: list[Spec]) -> Spec:
        weights = [self.random.choice([0.5, 1.0, 2.0]) for _ in parts] if self.random.random() < 0.5 else None
        return ad.OneOf(parts, weights)

    def _leaf(self) -> Spec:
        makers = [self._hard, self._blur, self._noise, self._drop_key, self._drop_head, self._dropout, self._other]
        return self.random.choices(makers, [4, 4, 2, 2, 1, 2, 2])[0]()

    def _other(self) -> Spec:
        """One of those that have no random fields here yet."""
        return self.random.choice([spec for spec in examples() if not isinstance(spec, KNOWN)])

    def _hard(self) -> Spec:
        fill, heads = self.random.choice(["zero", "zero", "-inf"]), "independent"
        if not self.fusible and self.random.random() < 0.2:
            heads = "stratified"
        learns = (fill, heads) == ("zero", "independent")
        return ad.HardMasking(self._rate(0.05, 0.5, learns), self.random.choice([1, 2, 3, 5, 100]), fill, heads)

    def _blur(self) -> Spec:
        sigma_max = self._rate(0.3, 2.0, learns=True)
        return ad.BlurSmoothing(
            sigma_max=sigma_max,
            width=self.random.choice([1, 3, 5, 5, 7]),
            # A warm-up starts at 0, and sigma_max must not lie below sigma_min.
            sigma_min=0.0 if isinstance(sigma_max, schedules.Warmup) else self.random.choice([0.0, 0.0, 0.2]),
            axes=self.random.choice(["keys", "both"]) if self.both_axes else "keys",
            edges=self.random.choice(["zero", "renormalize"]),
            sampling=self.random.choice(["batch", "sample", "head"]),
        )

    def _noise(self) -> Spec:
        return ad.GaussianNoise(self._rate(0.1, 1.0, learns=True))

    def _drop_key(self) -> Spec:
        by = self.random.choice(["element", "element", "column"])
        return ad.DropKey(self._rate(0.05, 0.5), by)

    def _drop_head(self) -> Spec:
        return ad.DropHead(self._rate(0.05, 0.5))

    def _dropout(self) -> Spec:
        return ad.AttentionDropout(self._rate(0.05, 0.5, learns=True))

    def _number(self, low: float, high: float) -> float:
        return round(self.random.uniform(low, high), 3)

    def _rate(self, low: float, high: float, learns: bool = False) -> float | Schedule:
        if self.random.random() < 0.8:
            return self._number(low, high)
        a, b = self._number(low, high), self._number(low, high)
        plans: list[Schedule] = [
            schedules.Constant(a),
            schedules.Linear(a, b),
            schedules.Cosine(a, b),
            schedules.Warmup(a, share=0.6),
            schedules.Piecewise([0.2, 0.7], [a, b]),
            schedules.Steps([0.0, 0.5], [a, b]),
            schedules.VShape(a, b, turn=0.4),
            schedules.Depth(a, b),
        ]
        if self.attached:
            plans.append(ad.EntropyTarget(0.6, low=low, high=high, start=a))
        if not self.fusible:
            plans.append(schedules.PerHead([self._number(low, high) for _ in range(self.heads)]))
        if self.attached and not self.fusible:
            plans += [ad.Learnable(min(max(a, low + 0.01), high - 0.01), low=low, high=high)] * (3 if learns else 0)
        return self.random.choice(plans)
