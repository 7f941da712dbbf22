"""What is compared: attention specs, and comparators. One file a comparator, with its tuning grid.

A new comparator is a new file and its line here. The order of these lines is the order in which a method that joins
several comparators is written.
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
