"""The `model` and `evaluation` sections of a recipe for image classification."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ....validation import integer, number, one_of
from ..checkpoint_files import CheckpointSettings
from ..interface import EvaluationSettings


@dataclass(frozen=True)
class TimmSettings(CheckpointSettings):
    """The model: `vit_digits`, or any name that timm knows.

    `patch_size` replaces the patch size of the model, so that it fits small images. `arguments` are passed to
    `timm.create_model`. `checkpoint` is a local .safetensors file, a folder of timm with model.safetensors, or the
    folder of a run of ours; all weights but those of the head are taken from it.
    """

    #: `vit_digits`, or a name that timm knows.
    name: str = "vit_digits"
    #: Replaces the patch size of the model. None: as the model has it.
    patch_size: int | None = None
    #: Whether timm loads its published weights, which it may download.
    pretrained: bool = False
    #: Recompute activations in the backward pass: less memory, more time, the same numbers.
    checkpoint_activations: bool = False
    #: More arguments of `timm.create_model`.
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.patch_size is not None:
            integer("patch_size", self.patch_size, minimum=1)


@dataclass(frozen=True)
class AttackSettings(EvaluationSettings):
    """The attack on the test part, once, at the end. Without `pgd_epsilons` there is no attack."""

    #: The sizes of the attacks, where pixels are in [0, 1]. 0.0313725 is 8/255.
    pgd_epsilons: tuple[float, ...] = ()
    #: How the size is measured: `linf` (the largest change of a pixel) or `l2`.
    pgd_norm: str = "linf"
    #: Steps of gradient ascent in one attack.
    pgd_steps: int = 20
    #: Random starts of each attack; the worst one counts.
    pgd_restarts: int = 1
    #: Attack only this many of the test images.
    pgd_examples: int = 1000
    #: Which ones: `stratified` for images of all classes in their shares, the same ones in all runs with one test part;
    #: or `first`, as older versions did. Where test images are sorted by class, the first ones belong to few classes.
    pgd_choice: str = "stratified"
    WITHOUT_TEST: ClassVar[dict[str, Any]] = {"pgd_epsilons": []}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pgd_steps", "pgd_restarts", "pgd_examples"):
            integer(name, getattr(self, name), minimum=1)
        one_of("pgd_norm", self.pgd_norm, ("linf", "l2"))
        one_of("pgd_choice", self.pgd_choice, ("stratified", "first"))
        for index, epsilon in enumerate(self.pgd_epsilons):
            number(f"pgd_epsilons[{index}]", epsilon, minimum=0.0)

    def beside_scores(self) -> tuple[str, ...]:
        """Attacks, if there are some."""
        return ("attacks",) if self.pgd_epsilons else ()
