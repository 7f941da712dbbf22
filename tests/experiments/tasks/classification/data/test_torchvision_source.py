"""CIFAR and Fashion-MNIST, read from small files in the real formats."""

from __future__ import annotations

import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from attentiondrop import AttentionDropError
from attentiondrop.experiments.tasks.classification.data import ImageSettings, load_data

datasets = pytest.importorskip("torchvision").datasets
GENERATOR = np.random.default_rng(4)


class OldPixels:
    """An array with an old pickle format: 0 and 1 for the booleans of its dtype. Some versions of NumPy warn of it."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def __reduce__(self):
        return np.ndarray, (self.pixels.shape, OldBytes(), self.pixels.tobytes())


class OldBytes:
    def __reduce__(self):
        return np.dtype, ("u1", 0, 1)


def cifar(root: Path, monkeypatch: pytest.MonkeyPatch, cls: type, label: str, classes: int, per_file: int) -> dict:
    """Write each file that torchvision expects, and set the checksums that it expects to those of these files."""
    folder = root / cls.base_folder
    folder.mkdir(parents=True)
    pixels = {}

    def put(name: str, content: dict) -> list[str]:
        data = pickle.dumps(content, protocol=2)
        (folder / name).write_bytes(data)
        return [name, hashlib.md5(data, usedforsecurity=False).hexdigest()]

    for attribute in ("train_list", "test_list"):
        entries = []
        for name, _ in getattr(cls, attribute):
            pixels[name] = GENERATOR.integers(256, size=(per_file, 3072), dtype=np.uint8)
            labels = [i % classes for i in range(per_file)]
            entries.append(put(name, {"data": OldPixels(pixels[name]), label: labels}))
        monkeypatch.setattr(cls, attribute, entries)
    name, md5 = put(cls.meta["filename"], {cls.meta["key"]: [f"class {i}" for i in range(classes)]})
    monkeypatch.setattr(cls, "meta", cls.meta | {"md5": md5})
    return pixels


def fashion(root: Path, train: int = 30, test: int = 20) -> dict[str, np.ndarray]:
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    images = {}
    for part, count in (("train", train), ("t10k", test)):
        images[part] = GENERATOR.integers(256, size=(count, 28, 28), dtype=np.uint8)
        header = struct.pack(">IIII", 0x0803, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images[part].tobytes())
        labels = bytes(i % 10 for i in range(count))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x0801, count) + labels)
    return images


def load(name: str, root: Path | None, **settings: object):
    return load_data(ImageSettings(name, root=None if root is None else str(root), **settings))


@pytest.mark.parametrize(
    ("name", "attribute", "label", "classes"),
    [("cifar10", "CIFAR10", "labels", 10), ("cifar100", "CIFAR100", "fine_labels", 100)],
)
def test_reads_cifar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, attribute: str, label: str, classes: int
) -> None:
    pixels = cifar(tmp_path, monkeypatch, getattr(datasets, attribute), label, classes, per_file=100)
    data = load(name, tmp_path)
    train = 100 * len(getattr(datasets, attribute).train_list)
    assert (data.classes, data.channels, data.size) == (classes, 3, 32)
    assert data.counts == {"train": train - train // 10, "validation": train // 10, "test": 100}
    test = pixels[getattr(datasets, attribute).test_list[0][0]]
    assert torch.equal(data.images["test"], torch.from_numpy(test).view(100, 3, 32, 32))
    assert data.labels["test"].tolist() == [i % classes for i in range(100)]
    assert data.images["train"].is_contiguous()


def test_changed_pickles_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar(tmp_path, monkeypatch, datasets.CIFAR10, "labels", 10, per_file=10)

    class Trap:
        def __reduce__(self):
            return exec, ("raise SystemExit('a foreign pickle was run')",)

    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(pickle.dumps({"data": Trap(), "labels": []}))
    with pytest.raises(AttentionDropError, match=r"expected complete and unchanged files of cifar10 in .*corrupted"):
        load("cifar10", tmp_path)


def test_reads_fashion_mnist(tmp_path: Path) -> None:
    images = fashion(tmp_path)
    data = load("fashion-mnist", tmp_path)
    assert (data.classes, data.channels, data.size) == (10, 1, 28)
    assert data.counts == {"train": 27, "validation": 3, "test": 20}
    assert torch.equal(data.images["test"], torch.from_numpy(images["t10k"])[:, None])
    assert data.labels["test"].tolist() == [i % 10 for i in range(20)]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("train-labels-idx1-ubyte", struct.pack(">II", 0x0801, 30) + bytes([10] * 30), "labels from 10 to 10"),
        ("t10k-labels-idx1-ubyte", struct.pack(">II", 0x0801, 3) + bytes(3), "20 images, 3 labels from 0 to 0"),
        ("train-images-idx3-ubyte", struct.pack(">IIII", 0x0803, 10**9, 28, 28) + bytes(100), ""),
        ("train-images-idx3-ubyte", b"no images here", ""),
        ("t10k-images-idx3-ubyte", b"", ""),
    ],
)
def test_damaged_files_of_fashion_mnist_are_one_clear_line(
    tmp_path: Path, file: str, content: bytes, reason: str
) -> None:
    """torchvision does not check the checksums of existing files, so damage gives many kinds of errors."""
    fashion(tmp_path)
    (tmp_path / "FashionMNIST" / "raw" / file).write_bytes(content)
    with pytest.raises(
        AttentionDropError, match="expected complete and unchanged files of fashion-mnist in "
    ) as caught:
        load("fashion-mnist", tmp_path)
    assert reason in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "folder"),
    [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python"), ("fashion-mnist", "FashionMNIST/raw")],
)
def test_missing_files_are_one_clear_line(tmp_path: Path, name: str, folder: str) -> None:
    for root in (None, tmp_path):
        with pytest.raises(AttentionDropError) as caught:
            load(name, root)
        received = None if root is None else str(root)
        assert str(caught.value) == (
            f"data.root: expected the folder that holds {folder}, received {received!r}; set it with "
            "--set data.root=FOLDER (for a finished run, with --root FOLDER), and data.download=true to have the files "
            "fetched there"
        )
    (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(AttentionDropError, match=f"expected complete and unchanged files of {name}") as caught:
        load(name, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_download_needs_a_place(tmp_path: Path) -> None:
    with pytest.raises(AttentionDropError, match=r"data\.root: .* received None"):
        load("cifar10", None, download=True)


def test_a_download_that_fails_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "url", (tmp_path / "nothing.tar.gz").as_uri())
    monkeypatch.setattr(datasets.FashionMNIST, "mirrors", [tmp_path.as_uri() + "/"])
    for name in ("cifar10", "fashion-mnist"):
        with pytest.raises(
            AttentionDropError, match=rf"data\.download: {name} could not be fetched into .*: .*No such file"
        ) as caught:
            load(name, tmp_path, download=True)
        assert "\n" not in str(caught.value)


def test_torchvision_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(
        AttentionDropError, match="'cifar10' needs torchvision; install it with: pip install torchvision"
    ):
        load("cifar10", None)
