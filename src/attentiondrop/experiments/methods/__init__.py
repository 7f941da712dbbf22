"""What is compared: attention specs and comparators. Each comparator has its own file, with its tuning grid.

A new comparator needs a new file and a line here. The canonical text of a method lists its comparators in the order
of these lines.
"""

# isort: off
from .comparator import COMPARATORS, Acting, Comparator
from .dropout import Dropout
from .droppath import DropPath
from .dropconnect import DropConnect
from .r_drop import RDrop
from .label_smoothing import LabelSmoothing
# isort: on

__all__ = [
    "COMPARATORS",
    "Acting",
    "Comparator",
    "DropConnect",
    "DropPath",
    "Dropout",
    "LabelSmoothing",
    "RDrop",
]
