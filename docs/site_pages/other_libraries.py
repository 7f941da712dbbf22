"""Links to the documentation of other libraries.

Usually intersphinx downloads a list of all names (`objects.inv`) of each library. A build must not need the internet,
so the few names that our pages use stand here, with their places. A name that is missing here is a warning of the
build.
"""

from __future__ import annotations

import zlib
from pathlib import Path

PLACES = {
    "python": "https://docs.python.org/3",
    "numpy": "https://numpy.org/doc/stable",
    "torch": "https://docs.pytorch.org/docs/stable",
}

_ABC = ("Callable", "Iterable", "Iterator", "Mapping", "Sequence")
#: Library -> the name of a class -> its place.
CLASSES: dict[str, dict[str, str]] = {
    "python": {f"collections.abc.{name}": f"library/collections.abc.html#collections.abc.{name}" for name in _ABC}
    | {
        "ValueError": "library/exceptions.html#ValueError",
        "UserWarning": "library/exceptions.html#UserWarning",
        "pathlib.Path": "library/pathlib.html#pathlib.Path",
    },
    "numpy": {
        name: f"reference/generated/{name}.html#{name}" for name in ("numpy.ndarray", "numpy.dtype", "numpy.generic")
    },
    "torch": {
        "torch.Tensor": "tensors.html#torch.Tensor",
        "torch.Generator": "generated/torch.Generator.html#torch.Generator",
        # Sphinx knows classes by where they are defined, torch documents them where one imports them.
        "torch._C.Generator": "generated/torch.Generator.html#torch.Generator",
        "torch.nn.Module": "generated/torch.nn.Module.html#torch.nn.Module",
        "torch.nn.modules.module.Module": "generated/torch.nn.Module.html#torch.nn.Module",
        "torch.nn.parameter.Parameter": "generated/torch.nn.parameter.Parameter.html#torch.nn.parameter.Parameter",
    },
}


def mapping(folder: Path) -> dict[str, tuple[str, str]]:
    """The setting `intersphinx_mapping`, with lists of names that are written into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for library, places in CLASSES.items():
        (folder / f"{library}.inv").write_bytes(inventory(library, places))
    return {library: (PLACES[library], str(folder / f"{library}.inv")) for library in CLASSES}


def inventory(library: str, places: dict[str, str]) -> bytes:
    """A list of classes in the format of Sphinx, version 2."""
    head = f"# Sphinx inventory version 2\n# Project: {library}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    lines = [f"{name} py:class 1 {place} -\n" for name, place in places.items()]
    return head.encode() + zlib.compress("".join(lines).encode())
