"""One case of the soak test, made from nothing but its number."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch
from soak_models import MODELS
from soak_specs import SpecMaker

from attentiondrop import schedules
from attentiondrop.specs import DropKey, HardMasking, Spec

COUNT = 200
#: Cases that are compiled: every twentieth.
COMPILED_EVERY = 20
CHECKPOINTING = ("none", "reentrant", "non-reentrant")
BACKENDS = ("auto", "fused", "eager")


@dataclass(frozen=True)
class Case:
    """What is combined. `lengths` are the queries and the keys of a sample."""

    number: int
    model: str
    mask: str
    spec: Spec
    progress: float
    layers: int
    batch: int
    lengths: tuple[int, int]
    heads: tuple[int, int]
    dropout_p: float
    dtype: torch.dtype
    autocast: bool
    checkpointing: str
    compiled: bool
    backend: str

    def __str__(self) -> str:
        queries, keys = self.lengths
        return (
            f"case_{self.number}: {self.model}, {self.layers} layer(s), batch {self.batch}, {queries} x {keys}, "
            f"heads {self.heads[0]}/{self.heads[1]}, mask {self.mask!r}, {self.spec} at {self.progress}, "
            f"dropout_p={self.dropout_p}, {str(self.dtype).removeprefix('torch.')}"
            f"{' under bfloat16 autocast' if self.autocast else ''}, checkpointing: {self.checkpointing}, "
            f"{'compiled, ' if self.compiled else ''}backend={self.backend!r}"
        )

    @property
    def low_dtype(self) -> torch.dtype:
        """The dtype in which attention gets its inputs."""
        return torch.bfloat16 if self.autocast else self.dtype


def make_case(number: int) -> Case:
    """Always the same one for the same number."""
    random = Random(f"soak {number}")
    name = list(MODELS)[number % len(MODELS)]
    model = MODELS[name]
    compiled = number % COMPILED_EVERY == COMPILED_EVERY - 1
    mask = random.choice(model.masks)
    heads = random.choice(model.heads)
    backend = random.choice(BACKENDS)
    # Compiling takes long where several blurs follow each other: their stencils are written out one inside of the other.
    fusible = compiled or (backend == "fused" and random.random() < 0.8)
    spec = SpecMaker(random, heads[0], mask in model.both_axes, model.attached, fusible).spec()
    if not model.attached:
        spec = spec.at(0.5)
    dtype = random.choice(model.dtypes)
    if compiled and dtype == torch.float64:
        # Draws are made in float32 (a normal from a logarithm and a cosine), and so are rotary embeddings. A compiler
        # rounds those otherwise than eager code does, which float64 would show.
        dtype = torch.float32
    autocast = model.attached and dtype == torch.float32 and random.random() < 0.3
    # In 16 bits many logits are closer to each other than their rounding.
    small = selects(spec) and (autocast or dtype.itemsize == 2)
    if small:
        # Few rows, so that some data have no such pair. Rates for each head fit the heads that they were made for.
        heads = heads if per_head(spec) else min(model.heads)
    length = random.choice([3, 4, 5] if small else model.lengths)
    keys = random.choice([length, length, length + 3]) if model.cross and mask != "causal" else length
    return Case(
        number,
        name,
        mask,
        spec,
        random.choice([0.0, 0.3, 0.7, 1.0]) if changes(spec) else 0.0,
        1 if small or compiled else random.choice([1, 2]),
        1 if small else random.choice([1, 2, 3]),
        (length, keys),
        heads,
        random.choice([0.0, 0.0, 0.0, 0.2]),
        dtype,
        autocast,
        "none" if compiled else random.choice(CHECKPOINTING),
        compiled,
        backend,
    )


def selects(spec: Spec) -> bool:
    """Whether something in it depends on the order of the logits."""
    return any(isinstance(leaf, HardMasking | DropKey) for leaf in spec.leaves())


def per_head(spec: Spec) -> bool:
    """Whether heads have rates of their own."""
    rates = (rate for leaf in spec.leaves() for rate in leaf.scheduled().values())
    return any(isinstance(rate, schedules.PerHead) for rate in rates)


def changes(spec: Spec) -> bool:
    """Whether a rate of it depends on the progress."""
    fixed = schedules.PerHead
    return any(not isinstance(rate, fixed) for leaf in spec.leaves() for rate in leaf.scheduled().values())
