"""Pretrained weights from local files. Nothing is downloaded, and a pickle is never loaded.

A run stores the checksum of what it began with, so that other files under the same name count as another run.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ...errors import ArgumentError, bad_argument
from .interface import ModelSettings

#: Names of weights in a folder, the first that is there counts: of a run of ours, of timm and transformers.
_WEIGHTS = ("best.safetensors", "model.safetensors")
#: What belongs to a model in a folder of transformers.
_PARTS = (".json", ".safetensors")


@dataclass(frozen=True)
class CheckpointSettings(ModelSettings):
    """Settings of models that may begin with pretrained weights.

    Attributes:
        checkpoint: a local folder or file; None for new weights.
        checkpoint_sha256: the checksum of its content. Commands fill it in. In a recipe it makes sure of the content.
    """

    checkpoint: str | None = field(default=None, kw_only=True)
    checkpoint_sha256: str | None = field(default=None, kw_only=True)


Settings = TypeVar("Settings", bound=ModelSettings)


def with_checksum(settings: Settings) -> Settings:
    """The settings with the checksum of the checkpoint, if they name one."""
    if not isinstance(settings, CheckpointSettings) or settings.checkpoint is None:
        return settings
    check_content(settings)
    return dataclasses.replace(settings, checkpoint_sha256=checkpoint_checksum(settings.checkpoint))


def check_content(settings: CheckpointSettings) -> None:
    """Raise if the content is not what `checkpoint_sha256` says."""
    if settings.checkpoint is None or settings.checkpoint_sha256 is None:
        return
    found = checkpoint_checksum(settings.checkpoint)
    if found != settings.checkpoint_sha256:
        raise ArgumentError(
            f"model.checkpoint: expected {settings.checkpoint} with the SHA-256 {settings.checkpoint_sha256}, "
            f"found {found}"
        )


def checkpoint_checksum(checkpoint: str) -> str:
    """SHA-256 of the file, or of the names and contents of the files of the model in the folder."""
    path = Path(checkpoint).expanduser()
    own = [path] if path.is_file() else [path / _WEIGHTS[0]] if (path / _WEIGHTS[0]).is_file() else None
    files = own or sorted(each for each in path.glob("*") if each.suffix in _PARTS)
    if not files:
        raise bad_argument("model.checkpoint", "a local folder or file with weights as safetensors", checkpoint)
    found = hashlib.sha256()
    for each in files:
        if own is None:
            found.update(f"{each.name}\n".encode())
        with each.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def weights_file(checkpoint: str) -> Path:
    """The file with the weights: `checkpoint` itself, or in that folder."""
    path = Path(checkpoint).expanduser()
    for file in (path, *(path / name for name in _WEIGHTS)):
        if file.is_file() and file.suffix == ".safetensors":
            return file
    raise bad_argument("model.checkpoint", f"a .safetensors file, or a folder with {' or '.join(_WEIGHTS)}", checkpoint)
