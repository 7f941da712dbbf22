"""Image classification as a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..interface import Batch, DataSettings, EvaluationSettings, Judgement, ModelSettings, OnBatch, Task
from ..metrics import CLASS_METRICS
from .data.image_settings import FILES, POLICIES, ImageSettings
from .settings import AttackSettings, TimmSettings

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn

    from .data.dataset import ImageData

#: Data set -> the package that reads it. The others need only NumPy.
_PACKAGES = {"digits": "sklearn"} | dict.fromkeys(("cifar10", "cifar100", "fashion-mnist", *FILES), "torchvision")


class Classification(Task):
    """Images, each with one class; models of timm. Heavy modules are imported only when they are used."""

    name = "classification"
    data_settings: ClassVar[type[DataSettings]] = ImageSettings
    model_settings: ClassVar[type[ModelSettings]] = TimmSettings
    evaluation_settings: ClassVar[type[EvaluationSettings]] = AttackSettings
    metrics = CLASS_METRICS

    def packages(self, data: DataSettings) -> Sequence[str]:
        """torchvision for its data sets, ImageNet and policies of augmentation, scikit-learn for the digits."""
        needed = [_PACKAGES[data.name]] if data.name in _PACKAGES else []
        return [*needed, "torchvision"] if getattr(data, "augment", None) in POLICIES else needed

    def special(self, data: Mapping[str, Any]) -> list[str]:
        """Label noise, and a reduced number of images."""
        found = []
        if noise := _number(data, "label_noise"):
            found.append(f"{100 * noise:g} % of the training labels replaced by wrong ones")
        fraction = _number(data, "train_fraction")
        if fraction is not None and fraction != 1.0:
            found.append(f"{100 * fraction:g} % of the training images")
        if data.get("limit"):
            found.append(f"at most {data['limit']} images of each part")
        return found

    def load_data(self, settings: ImageSettings) -> ImageData:
        """Read, split and check the images."""
        from .data import load_data

        return load_data(settings)

    def build_model(self, settings: TimmSettings, data: ImageData, rates: Mapping[str, float], seed: int) -> nn.Module:
        """A model with a head for the classes of the data."""
        from .timm_models import build_model

        return build_model(
            settings, classes=data.classes, channels=data.channels, size=data.size, rates=rates, seed=seed
        )

    def warnings(self, model: nn.Module, data: ImageData) -> Sequence[str]:
        """A vision transformer with very many patches."""
        from .timm_models import many_patches

        return many_patches(model, data.size)

    def examples(self, data: ImageData, count: int) -> Batch:
        """Black images."""
        import torch

        images = torch.zeros(count, data.channels, data.size, data.size)
        return Batch(images, torch.arange(count) % data.classes)

    def drawn_checksum(self, data: ImageData) -> str | None:
        """Each seed draws a split and wrong labels of its own with `data.resplit`."""
        return getattr(data, "drawn", None)

    def loss(self, output: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, int]:
        """Cross entropy. Targets are class indices, or class probabilities from methods that mix images."""
        from torch.nn.functional import cross_entropy

        total = cross_entropy(output.float(), targets, reduction="sum", label_smoothing=label_smoothing)
        return total, len(targets)

    def scores(
        self, model: nn.Module, data: ImageData, part: str, batch_size: int, accelerator: Accelerator | None
    ) -> dict[str, float]:
        """Accuracy, likelihood and calibration."""
        from ..class_scores import scores_of_part

        return scores_of_part(model, data, part, batch_size, accelerator)

    def judge(
        self,
        model: nn.Module,
        data: ImageData,
        settings: AttackSettings,
        accelerator: Accelerator | None = None,
        on_batch: OnBatch | None = None,
    ) -> Judgement:
        """Scores and, on the test part, a reliability diagram and the accuracy under attack."""
        from .scoring import judge

        return judge(model, data, settings, accelerator, on_batch)


def _number(section: Mapping[str, Any], key: str) -> float | None:
    """The setting if it is a number, otherwise None: a record that was changed by hand may hold anything."""
    found = section.get(key)
    return found if isinstance(found, (int, float)) else None
