"""Images of the user's own: a NumPy file with `x_train`, `y_train`, `x_test` and `y_test`."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError, bad_argument
from .source import Source, missing

KEYS = ("x_train", "y_train", "x_test", "y_test")


def load(root: str | None) -> Source:
    """Read the file.

    Images are square: [N, S, S], [N, S, S, C] or [N, C, S, S], uint8 or floating point in [0, 1]; where the last two
    both fit, the channels come last. Labels are integers from 0 on, [N] or [N, 1].
    """
    if root is None or not Path(root).is_file():
        raise missing(f"an .npz file that holds {', '.join(KEYS)}", root, "set it with --set data.root=FILE")
    arrays = _read(root)
    x_train, x_test = (_images(name, arrays[name]) for name in ("x_train", "x_test"))
    y_train, y_test = (_labels(name, arrays[name]) for name in ("y_train", "y_test"))
    for images, labels, part in ((x_train, y_train, "train"), (x_test, y_test, "test")):
        if len(images) != len(labels):
            raise ArgumentError(
                f"data.root: expected as many labels as images, received {len(labels)} in y_{part} and {len(images)} "
                f"in x_{part}"
            )
    if (x_train.shape[1:], x_train.dtype) != (x_test.shape[1:], x_test.dtype):
        raise ArgumentError(
            f"data.root: expected x_train and x_test of one kind, received {_kind(x_train)} and {_kind(x_test)} "
            "(channels, sides, type)"
        )
    return Source(x_train, y_train, x_test, y_test, classes=1 + int(max(y_train.max(), y_test.max())))


def _read(root: str) -> dict[str, NDArray[Any]]:
    try:
        # A pickle in a file from elsewhere could run anything: arrays of Python objects are refused.
        with Path(root).open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            if absent := [name for name in KEYS if name not in arrays]:
                raise ValueError(f"it lacks {', '.join(absent)} and has {', '.join(arrays) or 'nothing'}")
            return {name: arrays[name] for name in KEYS}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ArgumentError(f"data.root: expected an .npz file of plain arrays, {root!r} is none: {error}") from error


def _images(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] == array.shape[2]:
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[2] != array.shape[3] or 0 in array.shape:
        raise bad_argument(f"data.root: {name}", "square images [N, S, S], [N, S, S, C] or [N, C, S, S]", array.shape)
    if np.issubdtype(array.dtype, np.floating):
        # `not` catches NaN too.
        if not (array.min() >= 0 and array.max() <= 1):
            raise bad_argument(
                f"data.root: {name}", "floats in [0, 1]", f"{array.dtype} from {array.min():g} to {array.max():g}"
            )
        array = array.astype(np.float32)
    elif array.dtype != np.uint8:
        raise bad_argument(f"data.root: {name}", "uint8, or floats in [0, 1]", str(array.dtype))
    return np.ascontiguousarray(array)


def _labels(name: str, array: NDArray[Any]) -> NDArray[np.int64]:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer) or len(array) == 0 or array.min() < 0:
        expected = "integers >= 0 of shape [N] or [N, 1]"
        raise bad_argument(f"data.root: {name}", expected, f"{array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def _kind(images: NDArray[Any]) -> str:
    return f"{images.shape[1:]} {images.dtype}"
