"""What is compared: attention specs and comparators. Each comparator is one file in `comparators/`, found by itself.

The canonical text of a method lists its comparators in a fixed order: first these five, since folders of older studies
are named so, then the others by the names of their files.
"""

import importlib
import pkgutil

from . import comparators

# isort: off
from .comparator import COMPARATORS, Acting, Comparator, Pass
from .comparators.dropout import Dropout
from .comparators.droppath import DropPath
from .comparators.dropconnect import DropConnect
from .comparators.r_drop import RDrop
from .comparators.label_smoothing import LabelSmoothing
# isort: on

for _found in sorted(pkgutil.iter_modules(comparators.__path__), key=lambda module: module.name):
    importlib.import_module(f"{comparators.__name__}.{_found.name}")

__all__ = [
    "COMPARATORS",
    "Acting",
    "Comparator",
    "DropConnect",
    "DropPath",
    "Dropout",
    "LabelSmoothing",
    "Pass",
    "RDrop",
]
