"""Files of the user's own: layouts, types, and every way in which they can be wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from attentiondrop import AttentionDropError
from attentiondrop.experiments.data import DataSettings, load_data

GENERATOR = np.random.default_rng(3)
X = GENERATOR.integers(256, size=(60, 7, 7, 3), dtype=np.uint8)
Y = np.arange(60) % 4
GOOD = {"x_train": X[:40], "y_train": Y[:40], "x_test": X[40:], "y_test": Y[40:]}


def load(path: Path, **settings: object):
    return load_data(DataSettings("npz", root=str(path), **settings))


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
        ({"y_train": Y[:40] - 1}, "y_train: expected integers >= 0"),
        ({"y_test": np.eye(20, dtype=int)}, "y_test: expected integers >= 0"),
        ({"y_test": Y[:19]}, "expected as many labels as images, received 19 in y_test and 20 in x_test"),
        (
            {"x_test": X[40:, :5, :5]},
            "expected x_train and x_test of one kind, received (3, 7, 7) uint8 and (3, 5, 5) uint8",
        ),
        ({"x_test": X[40:] / 255}, "received (3, 7, 7) uint8 and (3, 7, 7) float32"),
        ({"x_train": np.array([object()])}, "is none: Object arrays cannot be loaded when allow_pickle=False"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(AttentionDropError, match=re.escape(message)) as caught:
        load(write(tmp_path, **changes))
    assert str(caught.value).startswith("data.root: ")


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(AttentionDropError, match=r"data\.root: .* received None; set it with --set data\.root=FILE"):
        load_data(DataSettings("npz"))
    with pytest.raises(AttentionDropError, match=r"expected an \.npz file that holds x_train, y_train, x_test, y_test"):
        load(tmp_path / "nothing.npz")
    path = tmp_path / "own.npz"
    np.savez(path, x_train=X, images=X)
    with pytest.raises(AttentionDropError, match="it lacks y_train, x_test, y_test and has x_train, images"):
        load(path)
    for content in (b"", b"PK\x03\x04 but no more", b"plain text"):
        path.write_bytes(content)
        with pytest.raises(AttentionDropError, match=r"expected an \.npz file of plain arrays, .* is none"):
            load(path)
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(AttentionDropError, match="it is a single array"):
        load(path)
