"""Sort the regularisers of a call by where fused attention meets them, or say why they do not fit there.

One pass over the keys can do, in this order: blur (which is attention on blurred keys), noise, one kind of dropping
logits, softmax, dropout of the weights, and factors on whole heads.
"""

from __future__ import annotations

from typing import NamedTuple

from ...specs import AttentionDropout, BlurSmoothing, DropHead, DropKey, GaussianNoise, HardMasking
from .leaves import Active, are_exclusive

#: The order of the stages; of the later ones a pass has room for one each.
_STAGES: dict[type, int] = {
    BlurSmoothing: 0,
    GaussianNoise: 1,
    HardMasking: 2,
    DropKey: 2,
    AttentionDropout: 3,
    DropHead: 4,
}
_SINGLE = {1: "noises", 2: "ways of dropping logits", 3: "dropouts of the weights"}


class Plan(NamedTuple):
    """The regularisers of a call by stage; a blur of width 1 is the identity and left out."""

    blurs: tuple[Active, ...]
    noise: Active | None
    drop: Active | None
    dropout: Active | None
    heads: tuple[Active, ...]

    def decides_inside(self, dropout_p: float) -> bool:
        """Whether something happens to single logits or weights, which plain fused attention cannot do."""
        return dropout_p > 0 or any(leaf is not None for leaf in (self.noise, self.drop, self.dropout))


def plan_of(leaves: list[Active]) -> Plan | str:
    """The plan, or the reason why there is none."""
    if any(isinstance(leaf.spec, HardMasking) and leaf.spec.heads == "stratified" for leaf in leaves):
        return "stratified draws belong to ranks, which need the logits"
    stages: list[list[Active]] = [[], [], [], [], []]
    logits = [leaf for leaf in leaves if leaf.spec.level == "logits"]
    for place, leaf in enumerate(logits):
        for later in logits[place + 1 :]:
            # Parts of a `OneOf` never act together, so their order says nothing.
            if _STAGES[type(later.spec)] < _STAGES[type(leaf.spec)] and not are_exclusive(leaf, later):
                return f"{later.spec.name} after {leaf.spec.name} needs the logits"
    for leaf in leaves:
        if not (isinstance(leaf.spec, BlurSmoothing) and leaf.spec.width == 1):
            stages[_STAGES[type(leaf.spec)]].append(leaf)
    for stage, plural in _SINGLE.items():
        if len(stages[stage]) > 1:
            return f"there is no fused path for several {plural} at once"
    blurs, noise, drop, dropout, heads = stages
    return Plan(tuple(blurs), _first(noise), _first(drop), _first(dropout), tuple(heads))


def _first(leaves: list[Active]) -> Active | None:
    return leaves[0] if leaves else None
