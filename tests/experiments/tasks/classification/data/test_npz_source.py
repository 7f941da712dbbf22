"""Files of the user: layouts, types, and the ways in which they can be wrong."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from attentiondrop import AttentionDropError
from attentiondrop.experiments.tasks.classification.data import ImageSettings, load_data, unpacking

GENERATOR = np.random.default_rng(3)
X = GENERATOR.integers(256, size=(60, 7, 7, 3), dtype=np.uint8)
Y = np.arange(60) % 4
GOOD = {"x_train": X[:40], "y_train": Y[:40], "x_test": X[40:], "y_test": Y[40:]}


def load(path: Path, **settings: object):
    return load_data(ImageSettings("npz", root=str(path), **settings))


def write(path: Path, **changes: object) -> Path:
    np.savez(path / "own.npz", **GOOD | changes)
    return path / "own.npz"


def test_reads_channels_last_first_and_labels_in_a_column(tmp_path: Path) -> None:
    last = load(write(tmp_path))
    assert (last.classes, last.channels, last.size) == (4, 3, 7)
    assert last.counts == {"train": 36, "validation": 4, "test": 20}
    assert torch.equal(last.images["test"], torch.from_numpy(X[40:]).permute(0, 3, 1, 2))
    first = {"x_train": X[:40].transpose(0, 3, 1, 2), "x_test": X[40:].transpose(0, 3, 1, 2)}
    labels = {"y_train": Y[:40, None].astype(np.uint8), "y_test": Y[40:, None].astype(np.int32)}
    assert load(write(tmp_path, **first, **labels)).checksums == last.checksums


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(Path("~/own.npz")).counts["test"] == 20


def test_reads_grey_images(tmp_path: Path) -> None:
    data = load(write(tmp_path, x_train=X[:40, ..., 0], x_test=X[40:, ..., 0]))
    assert (data.channels, data.size) == (1, 7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_reads_floats(tmp_path: Path, dtype: type) -> None:
    images = (X / 255).astype(dtype)
    data = load(write(tmp_path, x_train=images[:40], x_test=images[40:]))
    raw = next(data.batches("test", 20, normalise=False))[0]
    assert data.images["train"].dtype == raw.dtype == torch.float32
    assert np.array_equal(raw.permute(0, 2, 3, 1).numpy(), images[40:].astype(np.float32))


def test_channels_come_last_where_both_readings_fit(tmp_path: Path) -> None:
    cubes = GENERATOR.integers(256, size=(60, 3, 3, 3), dtype=np.uint8)
    data = load(write(tmp_path, x_train=cubes[:40], x_test=cubes[40:]))
    assert torch.equal(data.images["test"], torch.from_numpy(cubes[40:]).permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x_train": X[:40, :5]},
            "x_train: expected square images [N, S, S], [N, S, S, C] or [N, C, S, S], received (40,",
        ),
        ({"x_test": X[40:, 0, 0, 0]}, "x_test: expected square images"),
        ({"x_test": X[:0], "y_test": Y[:0]}, "x_test: expected square images"),
        ({"x_train": X[:40].astype(np.int32)}, "x_train: expected uint8, or floats in [0, 1], received 'int32'"),
        (
            {"x_train": X[:40].astype(np.float32)},
            "x_train: expected floats in [0, 1], received 'float32 from 0 to 255'",
        ),
        ({"x_train": X[:40] / 255 - 0.5}, "x_train: expected floats in [0, 1], received 'float64 from -0.5 to 0.5'"),
        ({"x_train": np.full((40, 7, 7, 3), np.nan)}, "x_train: expected floats in [0, 1]"),
        (
            {"y_train": Y[:40] / 2},
            "y_train: expected integers >= 0 of shape [N] or [N, 1], received 'float64 of shape (40,)'",
        ),
        (
            {"y_train": Y[:40] - 1},
            "y_train: expected integers >= 0 of shape [N] or [N, 1], received 'int64 from -1 to 2'",
        ),
        ({"y_train": np.full(40, np.nan)}, "y_train: expected integers >= 0 of shape [N] or [N, 1], received 'float64"),
        ({"y_test": np.eye(20, dtype=int)}, "y_test: expected integers >= 0"),
        ({"y_test": Y[:19]}, "expected as many labels as images, received 19 in y_test and 20 in x_test"),
        (
            {"x_test": X[40:, :5, :5]},
            "expected x_train and x_test of one kind, received (3, 7, 7) uint8 and (3, 5, 5) uint8",
        ),
        ({"x_test": X[40:] / 255}, "received (3, 7, 7) uint8 and (3, 7, 7) float32"),
        ({"x_train": np.array([object()])}, "is not one: Object arrays cannot be loaded when allow_pickle=False"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(AttentionDropError, match=re.escape(message)) as caught:
        load(write(tmp_path, **changes))
    assert str(caught.value).startswith("data.root: ") and "\n" not in str(caught.value)
    assert str(tmp_path / "own.npz") in str(caught.value)


def with_label(label: int, dtype: type) -> np.ndarray:
    labels = Y[:40].astype(dtype)
    labels[7] = label
    return labels


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(
    "label, dtype", [(10, np.int64), (10**9, np.int32), (2**63 + 3, np.uint64), (2**64 - 1, np.uint64)]
)
def test_a_label_far_above_the_number_of_classes_is_refused(tmp_path: Path, label: int, dtype: type, part: str) -> None:
    """It must not give a huge head, nor wrap around to a small or negative label."""
    path = write(tmp_path, **{f"y_{part}": with_label(label, dtype)[: 40 if part == "train" else 20]})
    with pytest.raises(AttentionDropError) as caught:
        load(path)
    assert str(caught.value) == (
        f"data.root: {str(path)!r}: expected labels from 0 to the number of classes - 1, with images of at least half of "
        f"the classes, received {label} as the largest of 5 distinct labels"
    )


def test_classes_without_images_are_legal_in_moderation(tmp_path: Path) -> None:
    # 5 labels, of which one occurs only in the test part, and 10 classes.
    assert load(write(tmp_path, y_test=with_label(9, np.uint64)[:20])).classes == 10
    # Labels that start at 1.
    assert load(write(tmp_path, y_train=Y[:40] + 1, y_test=Y[40:] + 1)).classes == 5


@pytest.mark.parametrize("test", [Y[40:], np.zeros(20, np.int64)])
def test_one_class_to_train_with_is_refused(tmp_path: Path, test: np.ndarray) -> None:
    path = write(tmp_path, y_train=np.full(40, 3), y_test=test)
    with pytest.raises(AttentionDropError) as caught:
        load(path)
    assert str(caught.value) == (
        f"data.root: {str(path)!r}: expected images of at least 2 classes to train with, received the label 3 alone"
    )


def with_member(path: Path, content: bytes) -> Path:
    """A file in which x_train has exactly these bytes."""
    with zipfile.ZipFile(path / "own.npz", "w") as archive:
        archive.writestr("x_train.npy", content)
        for name in ("y_train", "x_test", "y_test"):
            archive.writestr(f"{name}.npy", packed(GOOD[name]))
    return path / "own.npz"


def packed(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def announced(shape: tuple[int, ...]) -> bytes:
    """The header of an array, without the array."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (announced((10**9, 10**6, 10**6)), r"x_train\.npy should have 1000000000000000000128 bytes .*, and has 128"),
        (announced((-1, 7, 7)), "negative size"),
        (packed(X[:40])[:-1], r"x_train\.npy should have 6008 bytes by its shape and type, and has 6007"),
        (b"no array", "magic string is not correct"),
        (b"", "magic string"),
        (b"\x93NUMPY\x09\x00", "version"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': 1/0}   ", "malformed node"),
    ],
)
def test_arrays_that_are_not_what_they_say_are_refused_before_they_are_read(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = with_member(tmp_path, content)
    with pytest.raises(AttentionDropError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(f"data.root: expected an .npz file of plain arrays, {str(path)!r} is not one: ")
    assert "\n" not in str(caught.value)


def test_a_decompression_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(self: object, name: str) -> None:
        raise AssertionError(name)

    zeros = np.zeros((1000, 32, 32), np.uint8)
    path = tmp_path / "own.npz"
    np.savez_compressed(path, **GOOD | {"x_train": zeros, "x_test": zeros})
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", unpack)
    monkeypatch.setattr(unpacking, "HARMLESS", 1 << 20)
    with pytest.raises(AttentionDropError, match=r"its arrays unpack to 0\.00205 GB, \d+ times the size of the file"):
        load(path)
    monkeypatch.setattr(unpacking, "HARMLESS", 1 << 30)
    monkeypatch.setattr(unpacking, "physical_memory", lambda: 10**6)
    with pytest.raises(AttentionDropError, match=r"take 0\.00205 GB of memory, this machine has 0\.001 GB"):
        load(path)


def test_the_memory_of_a_machine() -> None:
    memory = unpacking.physical_memory()
    assert memory is None or memory > 2**28


@pytest.mark.parametrize("share", [0.2, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_cut_short_is_named(tmp_path: Path, share: float, save: Callable[..., None]) -> None:
    path = tmp_path / "own.npz"
    save(path, **GOOD)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(AttentionDropError, match=re.escape(str(path))):
        load(path)


def test_damaged_bytes_are_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    content = bytearray(path.read_bytes())
    content[3000] ^= 255
    path.write_bytes(content)
    with pytest.raises(AttentionDropError, match=r"own\.npz' is not one: Bad CRC-32 for file 'x_train\.npy'"):
        load(path)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(AttentionDropError, match=r"data\.root: .* received None; set it with --set data\.root=FILE"):
        load_data(ImageSettings("npz"))
    with pytest.raises(
        AttentionDropError, match=r"expected an \.npz file that exists, with x_train, y_train, x_test, y_test"
    ):
        load(tmp_path / "nothing.npz")
    path = tmp_path / "own.npz"
    np.savez(path, x_train=X, images=X)
    with pytest.raises(AttentionDropError, match="it lacks y_train, x_test, y_test and has x_train, images"):
        load(path)
    for content in (b"", b"PK\x03\x04 but no more", b"plain text"):
        path.write_bytes(content)
        with pytest.raises(AttentionDropError, match=r"expected an \.npz file of plain arrays, .* is not one"):
            load(path)
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(AttentionDropError, match="it is a single array"):
        load(path)
