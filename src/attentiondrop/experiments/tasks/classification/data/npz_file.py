"""Images of the user, in a NumPy file with `x_train`, `y_train`, `x_test` and `y_test`."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .....errors import ArgumentError, bad_argument
from ...missing_files import how_to_name, missing
from .source import Source, count_classes, one_line
from .unpacking import check_unpacked_sizes

KEYS = ("x_train", "y_train", "x_test", "y_test")


def load(root: str | None) -> Source:
    """Read the file.

    Images are square: [N, S, S], [N, S, S, C] or [N, C, S, S], uint8 or floating point in [0, 1]. If both of the last
    two fit, the channels come last. Labels are integers from 0 on, [N] or [N, 1], see `count_classes`.
    """
    if root is None or not Path(root).is_file():
        advice = how_to_name("FILE")
        if root is not None and Path(root).is_dir():
            advice = "for a folder with train/CLASS/*.png and val/CLASS/*.png set data.name=folder"
        raise missing(f"an .npz file that exists, with {', '.join(KEYS)}", root, advice)
    arrays = _read(root)
    where = f"data.root: {root!r}"
    x_train, x_test = (_images(f"{where}: {name}", arrays[name]) for name in ("x_train", "x_test"))
    y_train, y_test = (_labels(f"{where}: {name}", arrays[name]) for name in ("y_train", "y_test"))
    for images, labels, part in ((x_train, y_train, "train"), (x_test, y_test, "test")):
        if len(images) != len(labels):
            raise ArgumentError(
                f"{where}: expected as many labels as images, received {len(labels)} in y_{part} and {len(images)} "
                f"in x_{part}"
            )
    if (x_train.shape[1:], x_train.dtype) != (x_test.shape[1:], x_test.dtype):
        raise ArgumentError(
            f"{where}: expected x_train and x_test of one kind, received {_kind(x_train)} and {_kind(x_test)} "
            "(channels, sides, type)"
        )
    classes = count_classes(where, y_train, y_test)
    # Convert after the check: before it, a label may be too large for int64.
    return Source(x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64), classes)


def _read(root: str) -> dict[str, NDArray[Any]]:
    try:
        # Arrays of Python objects are refused: they are pickles, which could run any code.
        with Path(root).open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            if absent := [name for name in KEYS if name not in arrays]:
                raise ValueError(f"it lacks {', '.join(absent)} and has {', '.join(arrays) or 'nothing'}")
            with zipfile.ZipFile(file) as archive:
                check_unpacked_sizes(archive, [f"{name}.npy" for name in KEYS], Path(root).stat().st_size)
            return {name: arrays[name] for name in KEYS}
    # A file can be wrong in many ways, and NumPy and zipfile raise many kinds of errors, even MemoryError.
    except Exception as error:
        raise ArgumentError(
            f"data.root: expected an .npz file of plain arrays, {root!r} is not one: {one_line(error)}"
        ) from error


def _images(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] == array.shape[2]:
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[2] != array.shape[3] or 0 in array.shape:
        raise bad_argument(name, "square images [N, S, S], [N, S, S, C] or [N, C, S, S]", array.shape)
    if np.issubdtype(array.dtype, np.floating):
        # With `not`, NaN is refused too.
        if not (array.min() >= 0 and array.max() <= 1):
            raise bad_argument(name, "floats in [0, 1]", f"{array.dtype} from {array.min():g} to {array.max():g}")
        array = array.astype(np.float32)
    elif array.dtype != np.uint8:
        raise bad_argument(name, "uint8, or floats in [0, 1]", str(array.dtype))
    return np.ascontiguousarray(array)


def _labels(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    expected = "integers >= 0 of shape [N] or [N, 1]"
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer) or len(array) == 0:
        raise bad_argument(name, expected, f"{array.dtype} of shape {array.shape}")
    if array.min() < 0:
        raise bad_argument(name, expected, f"{array.dtype} from {array.min()} to {array.max()}")
    return array


def _kind(images: NDArray[Any]) -> str:
    return f"{images.shape[1:]} {images.dtype}"
